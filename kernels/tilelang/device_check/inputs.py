"""Random operands for a shape, and what PyTorch makes of them in float32: the expected outputs."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from device_check import chained, sampling, tokens
from device_check.artifact import Artifact
from device_check.cases import EPSILON, NAN, Case, pages_of, randint, randn, rotate
from device_check.memory import DTYPES
from device_check.shapes import PAGE_SIZE, Shape


def make(artifact: Artifact, shape: Shape) -> Case:
    """Draw operands for an artifact."""
    return MAKERS[artifact.kernel](artifact, shape)


def gather(artifact: Artifact, shape: Shape) -> Case:
    """Rows of a table."""
    table = randn(shape["vocab_size"], shape["hidden_size"], dtype=DTYPES[artifact.variant["dtype"]])
    ids = randint(0, shape["vocab_size"], (shape["tokens"],))
    inputs, taken = {"ids": ids, "table": table}, ids
    if "slots" in artifact.operands:
        last_tokens = randint(0, shape["vocab_size"], (shape["max_sequences"],))
        slots = randint(-3, shape["max_sequences"], (shape["tokens"],))
        taken = torch.where(slots < 0, ids, last_tokens[slots.clamp(min=0).long()])
        # An id that is not used may be anything.
        inputs |= {"slots": slots, "last_tokens": last_tokens, "ids": torch.where(slots < 0, ids, -1)}
    rows = table[taken.long()]
    if "weighted" not in artifact.operands:
        return Case(inputs, {"output": rows}, exact=("output",))
    inputs["norm_weight"] = randn(shape["hidden_size"], dtype=table.dtype)
    expected = {
        "output": rows,
        "weighted": (rows.float() * inputs["norm_weight"].float()).to(table.dtype),
        "squares": rows.float().square().unflatten(-1, (-1, 8)).sum(-1),
    }
    return Case(inputs, expected, exact=("output", "weighted"))


def norm(artifact: Artifact, shape: Shape) -> Case:
    """Rows of different sizes, with a residual or without."""
    dtype = DTYPES[artifact.variant["dtype"]]
    weight_dtype = DTYPES[artifact.variant.get("output_dtype", artifact.variant["dtype"])]
    rows = (shape["tokens"], shape["heads"], shape["hidden_size"])
    inputs = {"input": randn(*rows, dtype=dtype, scale=3.0), "weight": randn(shape["hidden_size"], dtype=weight_dtype)}
    x, expected = inputs["input"].float(), {}
    if "residual" in artifact.operands:
        inputs["residual"] = randn(*rows, dtype=dtype, scale=0.5)
        expected["residual"] = (x + inputs["residual"].float()).to(dtype)
        x = expected["residual"].float()
    expected["output"] = rms_norm(x, inputs["weight"])
    return Case(inputs, expected, {"epsilon": EPSILON}, exact=("residual",) if "residual" in expected else ())


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The formula, in float32."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight.float()


def product(artifact: Artifact, shape: Shape) -> Case:
    """A matrix product with the artifact's epilogue."""
    epilogue = artifact.variant.get("epilogue", "none")
    m, n, k = shape["m"], shape["n"], shape["k"]
    dtype = DTYPES[artifact.variant["dtype"]]
    weight = randn(2 * n if epilogue == "swiglu" else n, k, dtype=dtype, scale=k**-0.5)
    inputs = {"input": randn(m, k, dtype=dtype), "weight": weight}
    out = inputs["input"].float() @ inputs["weight"].float().t()
    if epilogue == "bias":
        inputs["bias"] = randn(n, dtype=dtype)
        out = out + inputs["bias"].float()
    elif epilogue == "residual":
        inputs["residual"] = randn(m, n, dtype=DTYPES[artifact.variant["output_dtype"]])
        out = out + inputs["residual"].float()
    elif epilogue == "swiglu":
        out = torch.nn.functional.silu(out[:, :n]) * out[:, n:]
    return Case(inputs, {"output": out})


def append(artifact: Artifact, shape: Shape) -> Case:
    """Sequences of any number of new tokens, some of none, at positions that cross pages."""
    kv_heads, dim = shape["num_kv_heads"], shape["head_dim"]
    heads = shape["num_q_heads"]
    tokens, batch, page_size = shape["tokens"], shape["batch"], shape["page_size"]
    query_start = starts(batch, tokens)
    capacity = min(shape["max_pages"] * page_size, shape["max_positions"])
    positions = torch.zeros(tokens, dtype=torch.int32)
    sequence_of = torch.zeros(tokens, dtype=torch.long)
    for b in range(batch):
        first, end = int(query_start[b]), int(query_start[b + 1])
        begin = int(torch.randint(0, capacity - (end - first) + 1, ()))
        positions[first:end] = torch.arange(begin, begin + end - first)
        sequence_of[first:end] = b
    table = pages_of(batch, shape["max_pages"], shape["num_pages"])
    pool = in_layout(artifact, randn(shape["num_pages"], kv_heads, page_size, dim))
    inputs = {
        "qkv": randn(tokens, heads + 2 * kv_heads, dim),
        "positions": positions.cuda(),
        "query_start": query_start.cuda(),
        "block_table": table,
        "rotations": turns(shape["max_positions"], dim),
        "k_pages": pool,
        "v_pages": pool.flip(0).contiguous(),
    }
    q, k, v = (part.contiguous() for part in inputs["qkv"].split((heads, kv_heads, kv_heads), 1))
    inputs |= {"q": q, "k": k, "v": v}
    attributes = {}
    if artifact.variant.get("qk_norm") == "present":
        inputs["q_weight"], inputs["k_weight"], attributes = randn(dim), randn(dim), {"epsilon": EPSILON}
        q, k = (rms_norm(x.float(), inputs[w]).bfloat16() for x, w in ((q, "q_weight"), (k, "k_weight")))
    page = table[sequence_of.cuda(), inputs["positions"].long() // page_size].long()
    slot = inputs["positions"].long() % page_size
    pages = {name: inputs[name].clone() for name in ("k_pages", "v_pages")}
    expected = dict(pages)
    if "q_out" in artifact.operands:
        turn = inputs["rotations"][inputs["positions"].long()][:, None]
        expected["q_out"], k = rotate(q, turn), rotate(k, turn).bfloat16()
    heads_first(artifact, pages["k_pages"])[page, :, slot] = k
    heads_first(artifact, pages["v_pages"])[page, :, slot] = v
    return Case(
        {name: tensor for name, tensor in inputs.items() if name in artifact.operands},
        expected,
        attributes,
        exact=("v_pages",) if "q_out" in artifact.operands else ("k_pages", "v_pages"),
    )


def turns(max_positions: int, dim: int) -> torch.Tensor:
    """Cosines and sines."""
    angles = torch.rand(max_positions, dim // 2, device="cuda") * 6.28
    return torch.stack((angles.cos(), angles.sin()), -1)


def heads_first(artifact: Artifact, pool: torch.Tensor) -> torch.Tensor:
    """A view of a pool as `[num_pages, num_kv_heads, page_size, head_dim]`; of one with these axes, as it is kept."""
    return pool.transpose(1, 2) if artifact.variant.get("layout") == "nhd" else pool


def in_layout(artifact: Artifact, pool: torch.Tensor) -> torch.Tensor:
    """A pool of heads before tokens, as the artifact keeps it."""
    return heads_first(artifact, pool).contiguous()


def rope(artifact: Artifact, shape: Shape) -> Case:
    """Heads turned by their tokens' positions."""
    inputs = {
        "input": randn(shape["tokens"], shape["num_heads"], shape["head_dim"]),
        "positions": randint(0, shape["max_positions"], (shape["tokens"],)),
        "rotations": turns(shape["max_positions"], shape["head_dim"]),
    }
    turn = inputs["rotations"][inputs["positions"].long()][:, None]
    return Case(inputs, {"output": rotate(inputs["input"], turn)})


def gate(artifact: Artifact, shape: Shape) -> Case:
    """Gates from where they close to where they are open."""
    dtype = DTYPES[artifact.variant["dtype"]]
    inputs = {
        "gate": randn(shape["rows"], shape["size"], dtype=dtype, scale=6.0),
        "up": randn(shape["rows"], shape["size"], dtype=dtype),
    }
    return Case(inputs, {"output": torch.nn.functional.silu(inputs["gate"].float()) * inputs["up"].float()})


def starts(batch: int, tokens: int) -> torch.Tensor:
    """Where each sequence's tokens start, some sequences having none."""
    cuts = torch.randint(0, tokens + 1, (batch - 1,)).sort().values if batch < tokens else torch.arange(1, batch)
    return torch.cat((torch.tensor([0]), cuts, torch.tensor([tokens]))).int()


def decode(artifact: Artifact, shape: Shape) -> Case:
    """Lengths from 0 to the table's capacity, one of them at a page boundary; unused slots are NaN."""
    capacity = shape["max_pages"] * shape["page_size"]
    kv_len = torch.randint(1, capacity + 1, (shape["batch"],))
    kv_len[0] = capacity
    if shape["batch"] > 2:
        kv_len[1], kv_len[2] = 0, shape["page_size"]
    inputs = cache(artifact, shape, kv_len)
    inputs["q"] = randn(shape["batch"], shape["num_q_heads"], shape["head_dim"])
    rows = [
        attend(inputs["q"][b : b + 1], *keys_of(artifact, inputs, b, int(kv_len[b]))) for b in range(shape["batch"])
    ]
    return Case(inputs, {"output": torch.cat(rows)}, {"scale": shape["head_dim"] ** -0.5})


def single_decode(artifact: Artifact, shape: Shape) -> Case:
    """One row and all keys."""
    keys = (shape["kv_len"], shape["num_kv_heads"], shape["head_dim"])
    inputs = {"q": randn(1, shape["num_q_heads"], shape["head_dim"]), "k": randn(*keys), "v": randn(*keys)}
    output = attend(inputs["q"], inputs["k"].transpose(0, 1), inputs["v"].transpose(0, 1))
    return Case(inputs, {"output": output}, {"scale": shape["head_dim"] ** -0.5})


def prefill(artifact: Artifact, shape: Shape) -> Case:
    """A mixed batch over pages."""
    capacity = shape["max_pages"] * shape["page_size"]
    query_len, kv_len = mixed_lengths(shape["batch"], shape["tokens"], capacity, shape["page_size"])
    inputs = cache(artifact, shape, kv_len)
    return mixed(shape, query_len, inputs, lambda b: keys_of(artifact, inputs, b, int(kv_len[b])))


def ragged_prefill(artifact: Artifact, shape: Shape) -> Case:
    """A mixed batch over keys with no pages; after the last sequence's there are some of nobody, which are NaN."""
    capacity = shape["kv_tokens"] // shape["batch"]
    query_len, kv_len = mixed_lengths(shape["batch"], shape["tokens"], capacity, PAGE_SIZE)
    kv_start = torch.cat((torch.tensor([0]), kv_len.cumsum(0)))
    keys = (shape["kv_tokens"], shape["num_kv_heads"], shape["head_dim"])
    inputs = {"k": randn(*keys), "v": randn(*keys), "kv_start": kv_start.int().cuda()}
    for name in ("k", "v"):
        inputs[name][int(kv_start[-1]) :] = NAN
    of = lambda b: (inputs[name][int(kv_start[b]) : int(kv_start[b + 1])].transpose(0, 1) for name in ("k", "v"))  # noqa: E731
    return mixed(shape, query_len, inputs, of)


def mixed(
    shape: Shape,
    query_len: torch.Tensor,
    inputs: dict[str, torch.Tensor],
    keys_of_sequence: Callable[[int], Iterable[torch.Tensor]],
) -> Case:
    """Rows of a mixed batch; rows of no sequence stay as they were."""
    query_start = torch.cat((torch.tensor([0]), query_len.cumsum(0)))
    inputs["query_start"] = query_start.int().cuda()
    inputs["q"] = randn(shape["tokens"], shape["num_q_heads"], shape["head_dim"])
    output = torch.zeros(inputs["q"].shape, device="cuda")
    for b in range(shape["batch"]):
        first, end = int(query_start[b]), int(query_start[b + 1])
        output[first:end] = attend(inputs["q"][first:end], *keys_of_sequence(b))
    untouched = torch.zeros(output.shape, dtype=torch.bool, device="cuda")
    untouched[int(query_start[-1]) :] = True
    return Case(inputs, {"output": output}, {"scale": shape["head_dim"] ** -0.5}, {"output": untouched})


def mixed_lengths(batch: int, tokens: int, capacity: int, page_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and keys of sequences: in turn a whole prompt, a decode row, nothing at all, and a chunk after earlier keys.

    One sequence alone has all tokens; of several, the last few tokens are nobody's. The first decode row and the first
    chunk end with a page.
    """
    left = tokens if batch == 1 else tokens - 2
    query_len, kv_len = [], []
    for b in range(batch):
        longest = min(left, capacity)
        drawn = int(torch.randint(0, longest + 1, ()))
        rows = (longest if batch == 1 else drawn, min(1, longest), 0, drawn)[b % 4]
        keys = (rows, int(torch.randint(rows, capacity + 1, ())), 0, int(torch.randint(rows, capacity + 1, ())))[b % 4]
        if b in (1, 3):
            keys = max(keys // page_size, -(-rows // page_size)) * page_size
        query_len.append(rows)
        kv_len.append(keys)
        left -= rows
    return torch.tensor(query_len), torch.tensor(kv_len)


def cache(artifact: Artifact, shape: Shape, kv_len: torch.Tensor) -> dict[str, torch.Tensor]:
    """Pools of pages whose slots hold numbers where a sequence has keys and NaN elsewhere."""
    page_size = shape["page_size"]
    pool = (shape["num_pages"], shape["num_kv_heads"], page_size, shape["head_dim"])
    pools = {name: torch.full(pool, NAN, dtype=torch.bfloat16, device="cuda") for name in ("k_pages", "v_pages")}
    table = pages_of(shape["batch"], shape["max_pages"], shape["num_pages"])
    for b, length in enumerate(kv_len.tolist()):
        for entry in range(-(-length // page_size)):
            used = min(length - entry * page_size, page_size)
            for pages in pools.values():
                pages[table[b, entry].long(), :, :used] = randn(shape["num_kv_heads"], used, shape["head_dim"])
    kept = {name: in_layout(artifact, pages) for name, pages in pools.items()}
    return {**kept, "block_table": table, "kv_len": kv_len.int().cuda()}


def keys_of(
    artifact: Artifact, inputs: Mapping[str, torch.Tensor], sequence: int, length: int
) -> Iterator[torch.Tensor]:
    """Keys and values of a sequence, `[kv_heads, length, dim]`."""
    for name in ("k_pages", "v_pages"):
        pool = heads_first(artifact, inputs[name])
        entries = inputs["block_table"][sequence, : -(-length // pool.shape[2])].long()
        yield pool[entries].transpose(0, 1).flatten(1, 2)[:, :length]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of the last rows of a sequence, `[rows, heads, dim]`, in float32."""
    rows, heads, dim = q.shape
    length = k.shape[1]
    if length == 0:
        return torch.zeros(q.shape, device="cuda")
    k, v = (x.float().repeat_interleave(heads // k.shape[0], 0) for x in (k, v))
    scores = q.float().transpose(0, 1) @ k.transpose(1, 2) * dim**-0.5
    seen = torch.arange(length, device="cuda") <= torch.arange(length - rows, length, device="cuda")[:, None]
    return (scores.masked_fill(~seen, -float("inf")).softmax(-1) @ v).transpose(0, 1)


MAKERS: Mapping[str, Callable[[Artifact, Shape], Case]] = {
    "embedding.gather": gather,
    "embedding.gather_weighted": gather,
    "normalization.rms_norm": norm,
    "normalization.add_rms_norm": norm,
    "gemm.dense_small": product,
    "streamed_gemm.dense_streamed": product,
    "prefill_gemm.dense": product,
    "joint_gemm.dense": product,
    "clustered_gemm.dense_clustered": product,
    "chained_gemm.weighted": chained.weighted,
    "chained_gemm.scaled_swiglu": chained.swiglu,
    "chained_gemm.scaled_projected": chained.projected,
    "projected.projected": chained.projected,
    "chained_tiles.scaled_swiglu": chained.swiglu,
    "chained_gemv.weighted": chained.weighted,
    "chained_gemv.scaled": chained.scaled,
    "chained_gemv.scaled_swiglu": chained.swiglu,
    "chained_gemv.scaled_projected": chained.projected,
    "kv_cache.rope_append": append,
    "paged_decode.paged_decode": decode,
    "paged_prefill.paged_prefill": prefill,
    "single_decode.single_decode": single_decode,
    "ragged_prefill.ragged_prefill": ragged_prefill,
    "kv_cache.paged_append": append,
    "position.rope": rope,
    "activation.swiglu": gate,
    "sampling.argmax": tokens.choose,
    "greedy_head.candidates": tokens.candidates,
    "greedy_head.pick": tokens.pick,
    "sample.sample": sampling.sample,
    "log_probabilities.log_probabilities": tokens.log_probabilities,
    "history.record_history": tokens.record_history,
}
