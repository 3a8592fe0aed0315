"""Times of artifacts and of PyTorch on the same work: graph replays, with operands rotated past the L2 cache."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from device_check import inputs, sampling
from device_check.driver import Module
from device_check.memory import DTYPES, addresses_of, record
from device_check.shapes import LLAMA_1B, LLAMA_8B, PAGE_SIZE, QWEN_1_5B, QWEN_7B, Model, Shape, attention

# Bytes that one turn of the rotation must pass through; the L2 cache has 60 MB.
ROTATION_BYTES = 160e6
CALLS_PER_GRAPH = 12
REPLAYS = 5
SEQUENCES = 256
PRODUCT_ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class Deadline:
    """The end of the time that timing may take."""

    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds

    def passed(self) -> bool:
        """Whether it is over."""
        return time.monotonic() > self.at


def microseconds(calls: Sequence[Callable[[], None]]) -> list[float]:
    """Time of one call in several replays of a graph that makes the calls in turn."""
    count = max(CALLS_PER_GRAPH, len(calls))
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(count):
            calls[index % len(calls)]()
    graph.replay()
    torch.cuda.synchronize()
    samples = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / count)
    return samples


def time_artifact(
    module: Module, shape: Shape, rotation: Sequence[Mapping[str, torch.Tensor]], attributes: Mapping[str, float]
) -> dict[str, Any]:
    """Microseconds of an artifact over sets of operands; operands that a set lacks are made once."""
    made = {
        name: torch.zeros(module.artifact.shape(name, shape), dtype=DTYPES[operand["element"]], device="cuda")
        for name, operand in module.artifact.operands.items()
        if name not in rotation[0]
    }
    runs = [module.bind(shape, addresses_of({**made, **tensors}), attributes) for tensors in rotation]
    stream = lambda: torch.cuda.current_stream().cuda_stream  # noqa: E731
    return record(microseconds([lambda run=run: run(stream()) for run in runs]))


def all_times(
    modules: Mapping[str, Module], deadline: Deadline, beat: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Every timing, the most telling first."""
    for model in (QWEN_1_5B, QWEN_7B):
        yield from products(modules, model, deadline, beat)
    for model in (LLAMA_8B, QWEN_1_5B, QWEN_7B, LLAMA_1B):
        yield from prefills(modules, model, deadline, beat)
        yield from decodes(modules, model, deadline, beat)
    yield from small_kernels(modules, deadline, beat)
    yield from samples(modules, deadline, beat)


def by_kernel(modules: Mapping[str, Module], *kernels: str, **variant: object) -> list[Module]:
    """Modules of some kernels and a variant."""
    return [
        module
        for module in modules.values()
        if module.artifact.kernel in kernels
        and all(module.artifact.variant.get(name) == wanted for name, wanted in variant.items())
    ]


def fits(module: Module, m: int) -> bool:
    """Whether a tile is worth trying for m rows."""
    block_m = module.artifact.schedule["block_m"]
    if module.artifact.kernel == "gemm.dense":
        return m > 16 and (block_m <= 64 or m >= 128) and (block_m == 128 or m <= 1024)
    return m <= 2 * block_m and (block_m <= 16 or 4 * m > block_m)


def products(
    modules: Mapping[str, Module], model: Model, deadline: Deadline, beat: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Matrix products of a layer and of the head, for batches of decode and chunks of prefill."""
    for projection, (epilogue, n, k) in model.projections.items():
        head = projection == "lm_head"
        candidates = by_kernel(
            modules,
            "gemm.dense",
            "gemm.dense_small",
            "gemm.dense_split_k",
            epilogue=epilogue,
            output_dtype="f32" if head else "bf16",
        )
        weight_rows = 2 * n if epilogue == "swiglu" else n
        if not candidates:
            continue
        sets = max(1, min(32, math.ceil(ROTATION_BYTES / (weight_rows * k * 2))))
        weights = [inputs.randn(weight_rows, k, scale=0.02) for _ in range(sets)]
        for m in PRODUCT_ROWS:
            if deadline.passed() or (head and m > 256):
                break
            shape = {"m": m, "n": n, "k": k}
            x, extra = inputs.randn(m, k), {"bias": inputs.randn(n), "residual": inputs.randn(m, n)}
            out = torch.empty(m, weight_rows, dtype=torch.bfloat16, device="cuda")
            row = {"what": "product", "model": model.name, "projection": projection, **shape, "ours": {}}
            row["torch"] = record(microseconds([lambda w=w: torch.matmul(x, w.t(), out=out) for w in weights]))
            for module in (module for module in candidates if fits(module, m)):
                beat(module.artifact.name)
                rotation = [{"input": x, "weight": w, **extra} for w in weights]
                row["ours"][module.artifact.name] = time_artifact(module, shape, rotation, {})
            yield row
        del weights
        torch.cuda.empty_cache()


def decodes(
    modules: Mapping[str, Module], model: Model, deadline: Deadline, beat: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Paged decode with several numbers of splits."""
    candidates = by_kernel(modules, "paged_decode.paged_decode", head_dim=model.head_dim)
    for batch, length in itertools.product((1, 8, 64, 256), (1024, 4096)):
        if deadline.passed() or not candidates:
            return
        shape, rotation, dense = attention_operands(model, (length,) * batch)
        row = {"what": "decode", "model": model.name, "batch": batch, "kv_len": length, "ours": {}}
        attributes = {"scale": model.head_dim**-0.5}
        q, k, v = dense
        row["torch"] = record(
            microseconds([lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)])
        )
        for module in candidates:
            beat(module.artifact.name)
            choices = (2, 4, 8, 16, 32, 64) if module.artifact.variant["split"] == "split" else (1,)
            blocks = batch * model.num_kv_heads
            pages = shape["max_pages"]
            for splits in (s for s in choices if s == 1 or (s <= pages and blocks * s <= 1500)):
                wanted = {**shape, "splits": splits} if len(choices) > 1 else shape
                name = f"{module.artifact.name} splits={splits}"
                row["ours"][name] = time_artifact(module, wanted, rotation, attributes)
        row["bytes"] = 2 * batch * length * model.num_kv_heads * model.head_dim * 2
        yield row
        torch.cuda.empty_cache()


def attention_operands(
    model: Model, lengths: Sequence[int]
) -> tuple[Shape, list[dict[str, torch.Tensor]], tuple[torch.Tensor, ...]]:
    """Operands whose tables take turns through enough pages, and as many keys for PyTorch, contiguous."""
    batch, longest = len(lengths), max(lengths)
    pages = -(-longest // PAGE_SIZE)
    page_bytes = 2 * PAGE_SIZE * model.num_kv_heads * model.head_dim * 2
    sets = max(1, min(16, math.ceil(ROTATION_BYTES / (batch * pages * page_bytes))))
    shape = attention(model.head_dim, batch, pages, model.num_q_heads, model.num_kv_heads)
    shape["num_pages"] = batch * pages * sets
    pool = (shape["num_pages"], model.num_kv_heads, PAGE_SIZE, model.head_dim)
    k_pages, v_pages = inputs.randn(*pool), inputs.randn(*pool)
    tables = torch.randperm(shape["num_pages"]).int().view(sets, batch, pages).cuda()
    kv_len = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    q = inputs.randn(batch, model.num_q_heads, model.head_dim)
    rotation = [
        {"q": q, "k_pages": k_pages, "v_pages": v_pages, "block_table": table, "kv_len": kv_len} for table in tables
    ]
    kv = (inputs.randn(batch, model.num_kv_heads, longest, model.head_dim) for _ in range(2))
    return shape, rotation, (q[:, :, None], *kv)


# Queries and keys of each sequence: whole prompts, chunks after earlier keys, decode rows beside a chunk.
PREFILLS: Mapping[str, Sequence[tuple[int, int]]] = {
    "2048": [(2048, 2048)],
    "8192": [(8192, 8192)],
    "512": [(512, 512)],
    "8 of 1024": [(1024, 1024)] * 8,
    "512 after 3584": [(512, 4096)],
    "32 after 224, 64 after 960": [(32, 256), (64, 1024)],
    "64 rows of decode at 1024, 448 after 1600": [(1, 1024)] * 64 + [(448, 2048)],
}


def prefills(
    modules: Mapping[str, Module], model: Model, deadline: Deadline, beat: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """The batches of `PREFILLS`."""
    candidates = by_kernel(modules, "paged_prefill.paged_prefill", head_dim=model.head_dim)
    for name, sequences in PREFILLS.items():
        if deadline.passed() or not candidates:
            return
        queries, lengths = ([s[0] for s in sequences], [s[1] for s in sequences])
        shape, rotation, (_, k, v) = attention_operands(model, lengths)
        shape["tokens"] = sum(queries)
        starts = torch.tensor([0, *itertools.accumulate(queries)], dtype=torch.int32, device="cuda")
        q = inputs.randn(shape["tokens"], model.num_q_heads, model.head_dim)
        rotation = [{**tensors, "q": q, "query_start": starts} for tensors in rotation]
        pairs = sum(rows * (keys - rows / 2) for rows, keys in sequences)
        row = {"what": "prefill", "model": model.name, "batch": name, "ours": {}}
        row["operations"] = 4 * model.num_q_heads * model.head_dim * pairs
        if queries == lengths:
            dense = q.view(len(queries), -1, model.num_q_heads, model.head_dim).transpose(1, 2).contiguous()
            sdpa = torch.nn.functional.scaled_dot_product_attention
            row["torch"] = record(microseconds([lambda: sdpa(dense, k, v, is_causal=True, enable_gqa=True)]))
        for module in candidates:
            beat(module.artifact.name)
            attributes = {"scale": model.head_dim**-0.5}
            row["ours"][module.artifact.name] = time_artifact(module, shape, rotation, attributes)
        yield row
        torch.cuda.empty_cache()


def small_kernels(
    modules: Mapping[str, Module], deadline: Deadline, beat: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Norms, gathers, appends and the choice of tokens, at batch sizes of decode and prefill."""
    model = QWEN_1_5B
    for m in (1, 16, 64, 256, 4096):
        append = {
            "batch": 1 if m > 256 else m,
            "tokens": m,
            "num_q_heads": model.num_q_heads,
            "num_kv_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "rotary_dim": model.head_dim,
            "page_size": PAGE_SIZE,
            "max_pages": 80,
            "num_pages": 80 * (1 if m > 256 else m),
            "max_positions": 80 * PAGE_SIZE,
        }
        shapes = {
            "embedding.gather": {"tokens": m, "vocab_size": model.vocab_size, "hidden_size": model.hidden_size},
            "normalization.rms_norm": {"tokens": m, "heads": 1, "hidden_size": model.hidden_size},
            "normalization.add_rms_norm": {"tokens": m, "heads": 1, "hidden_size": model.hidden_size},
            "kv_cache.rope_append": append,
            **({"sampling.argmax": {"rows": m, "vocab_size": model.vocab_size}} if m <= 256 else {}),
        }
        for kernel, shape in shapes.items():
            for module in by_kernel(modules, kernel):
                dtype, head_dim = module.artifact.variant.get("dtype", "bf16"), module.artifact.variant.get("head_dim")
                domain = module.artifact.manifest["dimensions"].get("hidden_size", {"min": 0, "max": 2**31})
                inside = domain["min"] <= shape.get("hidden_size", 0) <= domain["max"] or "hidden_size" not in shape
                if deadline.passed() or dtype != "bf16" or head_dim not in (None, model.head_dim) or not inside:
                    continue
                if "max_sequences" in module.artifact.manifest["dimensions"]:
                    shape = {**shape, "max_sequences": SEQUENCES}
                beat(module.artifact.name)
                case = inputs.make(module.artifact, shape)
                times = time_artifact(module, shape, [case.inputs], case.attributes)
                yield {"what": kernel, "m": m, "ours": {module.artifact.name: times}}


def samples(modules: Mapping[str, Module], deadline: Deadline, beat: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Sampling with and without parameters, and log-probabilities; the logits lie in the L2 cache."""
    for rows in (1, 8, 16, 32, 64, 128, 256):
        shape = {"rows": rows, "vocab_size": QWEN_1_5B.vocab_size, "max_sequences": rows, "mask_rows": 1}
        shape["max_adjust"] = 30 * rows
        for parameters in ("none", "top", "all"):
            if deadline.passed():
                return
            row = {"what": "sample", "rows": rows, "parameters": parameters, "ours": {}}
            operands = sampling.timed(shape, parameters)
            for module in by_kernel(modules, "sample.sample"):
                beat(module.artifact.name)
                row["ours"][module.artifact.name] = time_artifact(module, shape, [operands], {})
            yield row
        logits = {"logits": operands["logits"]}
        row = {"what": "log_probabilities", "rows": rows, "ours": {}}
        for module in by_kernel(modules, "log_probabilities.log_probabilities"):
            beat(module.artifact.name)
            row["ours"][module.artifact.name] = time_artifact(module, shape, [logits], {})
        yield row
