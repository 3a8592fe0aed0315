"""Times of artifacts and of PyTorch on the same work: graph replays, with operands rotated past the L2 cache."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from device_check import floors, inputs, layers, sampling
from device_check.artifact import ELEMENT_BYTES, Artifact, Selection
from device_check.driver import Module
from device_check.floors import Rates
from device_check.memory import DTYPES, addresses_of, record
from device_check.shapes import (
    LLAMA_1B,
    LLAMA_8B,
    PAGE_SIZE,
    QWEN_0_5B,
    QWEN_1_5B,
    QWEN_7B,
    Model,
    Shape,
    attention,
)

# Bytes that one turn of the rotation must pass through; the L2 cache has 60 MB.
ROTATION_BYTES = 160e6
CALLS_PER_GRAPH = 12
REPLAYS = 5
SEQUENCES = 256
# Rows of decode steps and tokens of others, as `cuda/classes.rs` of the engine has them, the largest left out.
PRODUCT_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)
HEAD_ROWS = 256
# Rows over those of its tile for which a schedule with few rows is still tried.
MOST_TILE_ROWS = 8
DECODE_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256)
DECODE_LENGTHS = (256, 1024, 4096, 16_384)
MOST_DECODE_KEYS = 2**20
SPLITS = (2, 3, 4, 6, 8, 12, 16, 22, 32, 64)


class Deadline:
    """The end of the time that timing may take."""

    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds

    def passed(self) -> bool:
        """Whether it is over."""
        return time.monotonic() > self.at


class Replay:
    """A graph that makes calls in turn, replayed once already."""

    def __init__(self, calls: Sequence[Callable[[], None]]) -> None:
        self.count = max(CALLS_PER_GRAPH, len(calls))
        for call in calls[:2]:
            call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for index in range(self.count):
                calls[index % len(calls)]()
        self.sample()

    def sample(self) -> float:
        """Microseconds of one call in one replay."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / self.count


def microseconds(calls: Sequence[Callable[[], None]]) -> list[float]:
    """Time of one call in several replays of a graph that makes the calls in turn."""
    replay = Replay(calls)
    return [replay.sample() for _ in range(REPLAYS)]


def time_artifact(
    module: Module, shape: Shape, rotation: Sequence[Mapping[str, torch.Tensor]], attributes: Mapping[str, float]
) -> dict[str, Any]:
    """Microseconds of an artifact over sets of operands."""
    return record(microseconds(calls_of(module, shape, rotation, attributes)))


def calls_of(
    module: Module, shape: Shape, rotation: Sequence[Mapping[str, torch.Tensor]], attributes: Mapping[str, float]
) -> list[Callable[[], None]]:
    """A call for each set of operands; operands that a set lacks are made once."""
    made = {
        name: torch.zeros(module.artifact.shape(name, shape), dtype=DTYPES[operand["element"]], device="cuda")
        for name, operand in module.artifact.operands.items()
        if name not in rotation[0]
    }
    runs = [module.bind(shape, addresses_of({**made, **tensors}), attributes) for tensors in rotation]
    stream = lambda: torch.cuda.current_stream().cuda_stream  # noqa: E731
    # The operands stay as long as the calls.
    return [lambda run=run, kept=(made, rotation): run(stream()) for run in runs]


# What is timed, and for which models.
WHAT: Mapping[str, Sequence[Model]] = {
    "products": (QWEN_1_5B, QWEN_7B, LLAMA_8B, QWEN_0_5B),
    "prefills": (LLAMA_8B, QWEN_1_5B, QWEN_7B, LLAMA_1B),
    "decodes": (QWEN_1_5B, QWEN_7B, LLAMA_8B, QWEN_0_5B),
    "small": (QWEN_1_5B,),
    "samples": (QWEN_1_5B,),
    "adopted": (QWEN_1_5B, LLAMA_8B),
    "layers": (QWEN_1_5B, QWEN_0_5B),
}


def all_times(
    modules: Mapping[str, Module], what: Sequence[str], rates: Rates, deadline: Deadline, beat: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Timings of what is named."""
    # It makes its operands by what is here.
    from device_check.adopted import adopted

    timed = {
        "products": products,
        "prefills": prefills,
        "decodes": decodes,
        "small": small_kernels,
        "samples": samples,
        "adopted": adopted,
        "layers": whole_layers,
    }
    for name in what:
        for model in WHAT[name]:
            yield from timed[name](modules, model, rates, deadline, beat)


def by_kernel(modules: Mapping[str, Module], *kernels: str, **variant: object) -> list[Module]:
    """Modules of some kernels and a variant."""
    return [
        module
        for module in modules.values()
        if module.artifact.kernel in kernels
        and all(module.artifact.variant.get(name) == wanted for name, wanted in variant.items())
    ]


def fits(module: Module, m: int) -> bool:
    """Whether a schedule is worth trying for m rows."""
    if module.artifact.kernel in ("prefill_gemm.dense", "joint_gemm.dense"):
        return m > 16
    return m <= MOST_TILE_ROWS * module.artifact.schedule["block_m"]


def of_projection(modules: Mapping[str, Module], projection: str, epilogue: str) -> list[Module]:
    """The schedules of a product; logits are f32, and what else has no epilogue is bf16."""
    variant = {"epilogue": epilogue}
    if epilogue == "none":
        variant["output_dtype"] = "f32" if projection == "lm_head" else "bf16"
    kernels = ("gemm.dense_small", "prefill_gemm.dense", "joint_gemm.dense", "clustered_gemm.dense_clustered")
    return by_kernel(modules, *kernels, **variant)


def product_operands(artifact: Artifact, shape: Shape) -> list[dict[str, torch.Tensor]]:
    """Operands of a product, the weights in enough places to pass through the cache."""
    weight_rows, k = artifact.shape("weight", shape)
    sets = max(1, min(32, math.ceil(ROTATION_BYTES / (weight_rows * k * 2))))
    weights = [inputs.randn(weight_rows, k, scale=0.02) for _ in range(sets)]
    return [{**product_inputs(artifact, shape), "weight": weight} for weight in weights]


def product_inputs(artifact: Artifact, shape: Shape) -> dict[str, torch.Tensor]:
    """What a product reads beside its weights."""
    names = [name for name in ("input", "bias", "residual") if name in artifact.operands]
    return {
        name: inputs.randn(*artifact.shape(name, shape), dtype=DTYPES[artifact.operands[name]["element"]])
        for name in names
    }


def products(
    modules: Mapping[str, Module], model: Model, rates: Rates, deadline: Deadline, beat: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Matrix products of a layer and of the head, for batches of decode and chunks of prefill."""
    for projection, (epilogue, n, k) in model.projections.items():
        candidates = of_projection(modules, projection, epilogue)
        if not candidates:
            continue
        weights = [tensors["weight"] for tensors in product_operands(candidates[0].artifact, {"m": 1, "n": n, "k": k})]
        for m in PRODUCT_ROWS:
            if deadline.passed() or (projection == "lm_head" and m > HEAD_ROWS):
                break
            shape = {"m": m, "n": n, "k": k}
            read = product_inputs(candidates[0].artifact, shape)
            weight_rows = weights[0].shape[0]
            out = torch.empty(m, weight_rows, dtype=torch.bfloat16, device="cuda")
            row = {"what": "product", "model": model.name, "projection": projection, **shape, "ours": {}}
            row["floor"] = floors.product(rates, shape, weight_rows, output_bytes(candidates[0]))
            row["torch"] = record(
                microseconds([lambda w=w: torch.matmul(read["input"], w.t(), out=out) for w in weights])
            )
            for module in (module for module in candidates if fits(module, m)):
                beat(module.artifact.name)
                rotation = [{**read, "weight": w} for w in weights]
                row["ours"][module.artifact.name] = time_artifact(module, shape, rotation, {})
            yield row
        del weights
        torch.cuda.empty_cache()


def output_bytes(module: Module) -> int:
    """Bytes of an element of the output."""
    return ELEMENT_BYTES[module.artifact.operands["output"]["element"]]


def decodes(
    modules: Mapping[str, Module], model: Model, rates: Rates, deadline: Deadline, beat: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Paged decode with several numbers of splits."""
    candidates = by_kernel(modules, "paged_decode.paged_decode", head_dim=model.head_dim, layout=None)
    for length, batch in itertools.product(DECODE_LENGTHS, DECODE_BATCHES):
        if deadline.passed() or not candidates:
            return
        if batch * length > MOST_DECODE_KEYS:
            continue
        shape, rotation, (q, k, v) = attention_operands(model, (length,) * batch)
        row = {"what": "decode", "model": model.name, "batch": batch, "kv_len": length, "ours": {}}
        row["dimensions"] = shape
        heads = (model.num_q_heads, model.num_kv_heads)
        row["floor"] = floors.decode(rates, batch, length, heads, model.head_dim)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        row["torch"] = record(microseconds([lambda q=q, k=k, v=v: sdpa(q, k, v, enable_gqa=True)]))
        for module in candidates:
            beat(module.artifact.name)
            for splits in splits_of(module, shape):
                wanted = {**shape, "splits": splits} if "splits" in module.artifact.manifest["dimensions"] else shape
                name = f"{module.artifact.name} splits={splits}"
                times = time_artifact(module, wanted, rotation, {"scale": model.head_dim**-0.5})
                row["ours"][name] = times
        row["bytes"] = 2 * batch * length * model.num_kv_heads * model.head_dim * 2
        yield row
        torch.cuda.empty_cache()


def splits_of(module: Module, shape: Shape) -> list[int]:
    """Numbers of splits worth trying: no more than pages, nor than some ten blocks for each multiprocessor.

    Of an artifact that shares keys by a number of its own, 0.
    """
    if "splits" not in module.artifact.manifest["dimensions"]:
        return [module.artifact.manifest["constants"].get("splits", 0)]
    blocks = shape["batch"] * shape["num_kv_heads"]
    return [splits for splits in SPLITS if splits <= shape["max_pages"] and blocks * splits <= 1500]


def attention_operands(
    model: Model, lengths: Sequence[int], layout: str = "hnd", page_size: int = PAGE_SIZE
) -> tuple[Shape, list[dict[str, torch.Tensor]], tuple[torch.Tensor, ...]]:
    """Operands whose tables take turns through enough pages, and as many keys for PyTorch, contiguous."""
    batch, longest = len(lengths), max(lengths)
    shape, rotation = paged_operands(model, lengths, layout, page_size)
    kv = (inputs.randn(batch, model.num_kv_heads, longest, model.head_dim) for _ in range(2))
    return shape, rotation, (rotation[0]["q"][:, :, None], *kv)


def paged_operands(
    model: Model, lengths: Sequence[int], layout: str, page_size: int
) -> tuple[Shape, list[dict[str, torch.Tensor]]]:
    """Operands whose tables take turns through enough pages."""
    batch, longest = len(lengths), max(lengths)
    pages = -(-longest // page_size)
    page_bytes = 2 * page_size * model.num_kv_heads * model.head_dim * 2
    sets = max(1, min(16, math.ceil(ROTATION_BYTES / (batch * pages * page_bytes))))
    shape = attention(model.head_dim, batch, pages, model.num_q_heads, model.num_kv_heads, page_size)
    shape["num_pages"] = batch * pages * sets
    axes = (page_size, model.num_kv_heads) if layout == "nhd" else (model.num_kv_heads, page_size)
    pool = (shape["num_pages"], *axes, model.head_dim)
    k_pages, v_pages = inputs.randn(*pool), inputs.randn(*pool)
    tables = torch.randperm(shape["num_pages"]).int().view(sets, batch, pages).cuda()
    kv_len = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    q = inputs.randn(batch, model.num_q_heads, model.head_dim)
    rotation = [
        {"q": q, "k_pages": k_pages, "v_pages": v_pages, "block_table": table, "kv_len": kv_len} for table in tables
    ]
    return shape, rotation


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
    modules: Mapping[str, Module], model: Model, rates: Rates, deadline: Deadline, beat: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """The batches of `PREFILLS`."""
    candidates = by_kernel(modules, "paged_prefill.paged_prefill", head_dim=model.head_dim, layout=None)
    for name, sequences in PREFILLS.items():
        if deadline.passed() or not candidates:
            return
        queries, lengths = ([s[0] for s in sequences], [s[1] for s in sequences])
        shape, rotation, (_, k, v) = attention_operands(model, lengths)
        shape["tokens"] = sum(queries)
        q = inputs.randn(shape["tokens"], model.num_q_heads, model.head_dim)
        rotation = [{**tensors, "q": q, "query_start": starts(queries)} for tensors in rotation]
        row = prefill_row(model, name, sequences)
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


def starts(lengths: Sequence[int]) -> torch.Tensor:
    """Where rows of sequences start."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")


def prefill_row(model: Model, batch: str, sequences: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """What a prefill comes to: a row counts the keys that it sees."""
    seen = sum(queries * (keys - queries / 2) for queries, keys in sequences)
    operations = 4 * model.num_q_heads * model.head_dim * seen
    return {"what": "prefill", "model": model.name, "batch": batch, "ours": {}, "operations": operations}


def small_kernels(
    modules: Mapping[str, Module], model: Model, _rates: Rates, deadline: Deadline, beat: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Norms, gathers and appends, at batch sizes of decode and prefill."""
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
        }
        for kernel, shape in shapes.items():
            for module in by_kernel(modules, kernel, layout=None):
                dtype, head_dim = module.artifact.variant.get("dtype"), module.artifact.variant.get("head_dim")
                domain = module.artifact.manifest["dimensions"].get("hidden_size", {"min": 0, "max": 2**31})
                inside = domain["min"] <= shape.get("hidden_size", 0) <= domain["max"] or "hidden_size" not in shape
                if deadline.passed() or dtype == "f16" or head_dim not in (None, model.head_dim) or not inside:
                    continue
                feeds = "max_sequences" in module.artifact.manifest["dimensions"]
                wanted = {**shape, "max_sequences": SEQUENCES} if feeds else shape
                beat(module.artifact.name)
                case = inputs.make(module.artifact, wanted)
                times = time_artifact(module, wanted, [case.inputs], case.attributes)
                yield {"what": kernel, "m": m, "ours": {module.artifact.name: times}}


def samples(
    modules: Mapping[str, Module], model: Model, rates: Rates, deadline: Deadline, beat: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """The argmax, sampling, and log-probabilities; the L2 cache holds up to 64 rows of logits."""
    for rows in (1, 8, 16, 32, 64, 128, 256):
        shape = {"rows": rows, "vocab_size": model.vocab_size, "max_sequences": rows, "mask_rows": 1}
        shape["max_adjust"] = 30 * rows
        operands = {parameters: sampling.timed(shape, parameters) for parameters in ("none", "top", "all")}
        greedy = {name: operands["none"][name] for name in ("logits", "row_ints")}
        work = [("argmax", "sampling.argmax", greedy)]
        work += [(f"sample, parameters {name}", "sample.sample", tensors) for name, tensors in operands.items()]
        logits = {"logits": greedy["logits"]}
        work += [("log-probabilities", "log_probabilities.log_probabilities", logits)]
        for what, kernel, tensors in work:
            if deadline.passed():
                return
            row = {"what": what, "rows": rows, "vocab_size": model.vocab_size, "ours": {}}
            row["floor"] = rates.floor(4 * rows * model.vocab_size, 0)
            for module in by_kernel(modules, kernel):
                beat(module.artifact.name)
                row["ours"][module.artifact.name] = time_artifact(module, shape, [tensors], {})
            yield row


def whole_layers(
    modules: Mapping[str, Module], model: Model, _rates: Rates, deadline: Deadline, beat: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """A layer of a decode step, with norms and appends in its products and without."""
    selection = Selection.of(next(iter(modules.values())).artifact.folder)
    for row in layers.times(modules, selection, model, microseconds):
        beat(f"a layer of {row['rows']} rows")
        yield row
        if deadline.passed():
            return
