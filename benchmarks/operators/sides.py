"""Both sides of a row on the same numbers: calls of ours and of each peer over sets of operands, and what both found.

A set has operands that no other set touches. Sets are as many as pass through the L2 cache several times, or one where
a set alone does. Peers: PyTorch (cuBLAS, cuBLASLt, SDPA) and FlashInfer where it can be imported.
"""

import dataclasses
import importlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from clock import Call
from matrix import Row
from ours import APPEND, ATTENTION, EPSILON, GEMM, NORM, PACKED_APPEND, Ours

ROTATION_BYTES = 240e6
MOST_SETS = 24
WORKSPACE_BYTES = 512 << 20
# Tokens of a page of each side, where they differ: a page of ours is four of the peer's, one after another.
PEER_PAGE, LARGE_PAGE = 16, 64
BF16 = torch.bfloat16
# Norm of the difference over the norm of the peer's result: rounding to bf16 on both sides gives about 0.0024.
TOLERANCE = 1e-2


@dataclasses.dataclass
class Sides:
    """What is timed."""

    artifact: str
    ours: list[Call]
    # By the name of the implementation; a maker that is called when it is timed, since it may not admit the row.
    peers: Mapping[str, Callable[[], list[Call]]]
    # Of what a peer's first call returned: the first set's results, ours and the peer's.
    results: Callable[[Any], list[tuple[torch.Tensor, torch.Tensor]]]
    sets: int
    layout: str = ""
    peer_layout: str = ""
    # Makes a peer the one that is called, where PyTorch keeps that by itself.
    choose: Callable[[str], None] = lambda name: None

    def error(self, returned: Any) -> float:
        """The largest difference of a result after one call of each side; NaN counts as infinite."""
        worst = 0.0
        for ours, theirs in self.results(returned):
            norm = theirs.double().norm().item()
            found = (ours.double() - theirs.double()).norm().item() / (norm or 1.0)
            worst = max(worst, math.inf if math.isnan(found) else found)
        return worst


def flashinfer() -> Any:
    """The library, imported when it is first needed."""
    return importlib.import_module("flashinfer")


def randn(*shape: int) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(*shape, dtype=BF16, device="cuda")


def integers(values: Sequence[int]) -> torch.Tensor:
    """On the device."""
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def starts(lengths: Sequence[int]) -> list[int]:
    """Where each begins, and the end of all."""
    return [0, *itertools.accumulate(lengths)]


def number_of_sets(row: Row) -> int:
    """As many as pass through the cache, at most `MOST_SETS`."""
    return max(1, min(MOST_SETS, math.ceil(ROTATION_BYTES / row.bytes)))


def make(row: Row, ours: Ours) -> Sides:
    """Both sides of a row."""
    return MAKERS[row.family](row, ours)


class Pages:
    """Where the keys of a row's sequences lie, in pages of the peer and of ours."""

    def __init__(self, row: Row) -> None:
        keys = [keys for _, keys in row.sequences]
        self.batch, self.longest = len(keys), max(-(-k // LARGE_PAGE) for k in keys)
        self.large = self.batch * self.longest
        table = torch.randperm(self.large, dtype=torch.int32).view(self.batch, self.longest)
        self.table = {LARGE_PAGE: table.cuda()}
        ratio = LARGE_PAGE // PEER_PAGE
        small = (table[:, :, None] * ratio + torch.arange(ratio, dtype=torch.int32)).view(self.batch, -1)
        # No wider than the longest sequence needs.
        width = max(-(-k // PEER_PAGE) for k in keys)
        small = small[:, :width].contiguous()
        self.table[PEER_PAGE] = small.cuda()
        used = [-(-k // PEER_PAGE) for k in keys]
        self.indptr = torch.tensor(starts(used), dtype=torch.int32)
        self.indices = torch.cat([small[b, :n] for b, n in enumerate(used)])
        self.last = torch.tensor([(k - 1) % PEER_PAGE + 1 for k in keys], dtype=torch.int32)

    def sizes(self, row: Row) -> Callable[[int], dict[str, int]]:
        """The dimensions that pages of a size give."""

        def of(page_size: int) -> dict[str, int]:
            num_pages = self.large * LARGE_PAGE // page_size
            pages = {"batch": self.batch, "num_pages": num_pages, "max_pages": self.table[page_size].shape[1]}
            q_heads, kv_heads = row.sizes["heads"]
            return {**pages, "num_q_heads": q_heads, "num_kv_heads": kv_heads, "head_dim": row.sizes["head_dim"]}

        return of

    def pool(self, row: Row) -> torch.Tensor:
        """Random keys as the peer has them: `[pages of 16, 16, heads, head_dim]`."""
        ratio = LARGE_PAGE // PEER_PAGE
        return randn(self.large * ratio, PEER_PAGE, row.sizes["heads"][1], row.sizes["head_dim"])


def as_ours(pool: torch.Tensor, layout: str, page_size: int) -> torch.Tensor:
    """The same keys in our order of axes; the same memory where that is the peer's."""
    _, _, heads, head_dim = pool.shape
    if (layout, page_size) == ("nhd", PEER_PAGE):
        return pool
    pages = pool.view(-1, page_size, heads, head_dim)
    return pages if layout == "nhd" else pages.transpose(1, 2).contiguous()


def paged_attention(row: Row, ours: Ours) -> Sides:
    """Decode and prefill over pages, beside FlashInfer."""
    pages, decode = Pages(row), row.family == "paged_decode"
    sizes = pages.sizes(row)
    tokens = {} if decode else {"tokens": row.tokens}
    properties = ATTENTION if decode else {**ATTENTION, "mask": "causal"}
    artifact, dimensions, layout, page_size = ours.paged(
        f"attention.{row.family}", properties, lambda size: {**sizes(size), **tokens}
    )
    lengths = integers([keys for _, keys in row.sequences])
    first_rows = integers(starts([queries for queries, _ in row.sequences]))
    sets, theirs = [], []
    for _ in range(number_of_sets(row)):
        k, v, q = pages.pool(row), pages.pool(row), randn(row.tokens, row.sizes["heads"][0], row.sizes["head_dim"])
        own = {"q": q, "k_pages": as_ours(k, layout, page_size), "v_pages": as_ours(v, layout, page_size)}
        own |= {"block_table": pages.table[page_size], "kv_len": lengths, "output": torch.zeros_like(q)}
        sets.append(own if decode else {**own, "query_start": first_rows})
        theirs.append((q, (k, v), torch.zeros_like(q)))
    if decode:
        peers = {
            "flashinfer, tensor cores": lambda: decode_calls(row, pages, theirs, True),
            "flashinfer, CUDA cores": lambda: decode_calls(row, pages, theirs, False),
        }
    else:
        peers = {
            f"flashinfer {name}": lambda name=name: prefill_calls(row, pages, first_rows, theirs, name)
            for name in ("fa3", "fa2")
        }
    return Sides(
        artifact.name,
        ours.calls(artifact, dimensions, sets),
        peers,
        lambda returned: [(sets[0]["output"], returned)],
        len(sets),
        f"{layout} {page_size}",
        f"nhd {PEER_PAGE}",
    )


def workspace() -> torch.Tensor:
    """Scratch memory of a FlashInfer wrapper."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


def decode_calls(row: Row, pages: Pages, sets: Sequence[Any], tensor_cores: bool) -> list[Call]:
    """FlashInfer's decode, planned once."""
    wrapper = flashinfer().BatchDecodeWithPagedKVCacheWrapper(workspace(), "NHD", use_tensor_cores=tensor_cores)
    wrapper.plan(
        pages.indptr.cuda(),
        pages.indices.cuda(),
        pages.last.cuda(),
        *row.sizes["heads"],
        row.sizes["head_dim"],
        PEER_PAGE,
        q_data_type=BF16,
        kv_data_type=BF16,
    )
    return [lambda q=q, kv=kv, out=out: wrapper.run(q, kv, out=out) for q, kv, out in sets]


def prefill_calls(row: Row, pages: Pages, first_rows: torch.Tensor, sets: Sequence[Any], backend: str) -> list[Call]:
    """FlashInfer's prefill over pages, planned once."""
    wrapper = flashinfer().BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD", backend=backend)
    wrapper.plan(
        first_rows,
        pages.indptr.cuda(),
        pages.indices.cuda(),
        pages.last.cuda(),
        *row.sizes["heads"],
        row.sizes["head_dim"],
        PEER_PAGE,
        causal=True,
        q_data_type=BF16,
        kv_data_type=BF16,
    )
    return [lambda q=q, kv=kv, out=out: wrapper.run(q, kv, out=out) for q, kv, out in sets]


def ragged_prefill(row: Row, ours: Ours) -> Sides:
    """Keys one sequence after another; ours in pages where there is no artifact for that."""
    queries, keys = ([sequence[i] for sequence in row.sequences] for i in (0, 1))
    first_rows, first_keys = integers(starts(queries)), integers(starts(keys))
    (q_heads, kv_heads), head_dim = row.sizes["heads"], row.sizes["head_dim"]
    theirs = [
        (randn(row.tokens, q_heads, head_dim), *(randn(sum(keys), kv_heads, head_dim) for _ in range(2)))
        for _ in range(number_of_sets(row))
    ]
    theirs = [(q, k, v, torch.zeros_like(q)) for q, k, v in theirs]
    heads = {"num_q_heads": q_heads, "num_kv_heads": kv_heads, "head_dim": head_dim}
    try:
        layout, dimensions = "ragged", {**heads, "batch": len(keys), "tokens": row.tokens, "kv_tokens": sum(keys)}
        artifact = ours.select("attention.ragged_prefill", {**ATTENTION, "mask": "causal"}, dimensions)
        sets = [{"q": q, "k": k, "v": v, "kv_start": first_keys} for q, k, v, _ in theirs]
    except LookupError:
        pages = Pages(row)
        sizes = pages.sizes(row)
        artifact, dimensions, order, page_size = ours.paged(
            "attention.paged_prefill",
            {**ATTENTION, "mask": "causal"},
            lambda size: {**sizes(size), "tokens": row.tokens},
        )
        layout = f"{order} {page_size}"
        tables = {"block_table": pages.table[page_size], "kv_len": integers(keys)}
        sets = [
            {"q": q, **tables}
            | {f"{name}_pages": as_ours(paged(x, pages, keys), order, page_size) for name, x in (("k", k), ("v", v))}
            for q, k, v, _ in theirs
        ]
    sets = [{**own, "query_start": first_rows, "output": torch.zeros_like(own["q"])} for own in sets]
    peers = {
        f"flashinfer {name}": lambda name=name: ragged_calls(row, first_rows, first_keys, theirs, name)
        for name in ("fa3", "fa2")
    }
    if len(keys) == 1 and queries == keys:
        peers["torch SDPA"] = lambda: sdpa_calls(theirs)
    return Sides(
        artifact.name,
        ours.calls(artifact, dimensions, sets),
        peers,
        lambda returned: [(sets[0]["output"], returned)],
        len(sets),
        layout,
        "ragged",
    )


def paged(keys: torch.Tensor, pages: Pages, lengths: Sequence[int]) -> torch.Tensor:
    """Keys of sequences one after another, put into pages of the peer's order."""
    pool = torch.zeros(pages.large, LARGE_PAGE, *keys.shape[1:], dtype=BF16, device="cuda")
    for b, (first, length) in enumerate(zip(starts(lengths)[:-1], lengths, strict=True)):
        used = -(-length // LARGE_PAGE)
        whole = torch.zeros(used * LARGE_PAGE, *keys.shape[1:], dtype=BF16, device="cuda")
        whole[:length] = keys[first : first + length]
        pool[pages.table[LARGE_PAGE][b, :used].long()] = whole.view(used, LARGE_PAGE, *keys.shape[1:])
    return pool.view(-1, PEER_PAGE, *keys.shape[1:])


def ragged_calls(row: Row, first_rows: Any, first_keys: Any, sets: Sequence[Any], backend: str) -> list[Call]:
    """FlashInfer's prefill without pages, planned once."""
    wrapper = flashinfer().BatchPrefillWithRaggedKVCacheWrapper(workspace(), "NHD", backend=backend)
    wrapper.plan(
        first_rows,
        first_keys,
        *row.sizes["heads"],
        row.sizes["head_dim"],
        causal=True,
        q_data_type=BF16,
        kv_data_type=BF16,
    )
    return [lambda q=q, k=k, v=v, out=out: wrapper.run(q, k, v, out=out) for q, k, v, out in sets]


def sdpa_calls(sets: Sequence[Any]) -> list[Call]:
    """PyTorch's attention of one whole prompt."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        sdpa = torch.nn.functional.scaled_dot_product_attention
        return sdpa(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

    heads_first = [[x.transpose(0, 1)[None] for x in (q, k, v)] for q, k, v, _ in sets]
    return [lambda s=s: call(*s) for s in heads_first]


def gemm(row: Row, ours: Ours) -> Sides:
    """`output = input · weightᵀ` with nothing added, beside cuBLAS and cuBLASLt as PyTorch calls them."""
    m, n, k = (row.sizes[name] for name in "mnk")
    dimensions = {"m": m, "n": n, "k": k}
    artifact = ours.select("gemm.dense", GEMM, dimensions)
    sets, theirs = [], []
    for _ in range(number_of_sets(row)):
        x, weight = randn(m, k), randn(n, k) * k**-0.5
        output, other = (torch.zeros(m, n, dtype=BF16, device="cuda") for _ in range(2))
        sets.append({"input": x, "weight": weight, "output": output})
        theirs.append((x, weight.t(), other))

    def calls() -> list[Call]:
        return [lambda x=x, w=w, out=out: torch.mm(x, w, out=out) for x, w, out in theirs]

    return Sides(
        artifact.name,
        ours.calls(artifact, dimensions, sets),
        {"cublaslt": calls, "cublas": calls},
        lambda returned: [(sets[0]["output"], returned)],
        len(sets),
        choose=torch.backends.cuda.preferred_blas_library,
    )


def rms_norm(row: Row, ours: Ours) -> Sides:
    """Rows normalized, beside FlashInfer and PyTorch."""
    tokens, hidden_size = row.sizes["tokens"], row.sizes["hidden_size"]
    dimensions = {"tokens": tokens, "heads": 1, "hidden_size": hidden_size}
    artifact = ours.select("normalization.rms_norm", NORM, dimensions)
    sets, outputs = [], []
    for _ in range(number_of_sets(row)):
        x = randn(tokens, hidden_size)
        sets.append({"input": x, "weight": randn(hidden_size), "output": torch.zeros_like(x)})
        outputs.append(torch.zeros_like(x))

    def by_flashinfer() -> list[Call]:
        norm = flashinfer().norm.rmsnorm
        return [
            lambda s=s, out=out: norm(s["input"], s["weight"], EPSILON, out=out)
            for s, out in zip(sets, outputs, strict=True)
        ]

    def by_torch() -> list[Call]:
        norm = torch.nn.functional.rms_norm
        return [lambda s=s: norm(s["input"], (hidden_size,), s["weight"], EPSILON) for s in sets]

    peers = {"flashinfer": by_flashinfer, "torch": by_torch}
    calls = ours.calls(artifact, dimensions, sets)
    return Sides(artifact.name, calls, peers, lambda returned: [(sets[0]["output"], returned)], len(sets))


def rope_append(row: Row, ours: Ours) -> Sides:
    """Queries and keys turned, keys and values put into pages; FlashInfer takes two calls and turns in place."""
    pages = Pages(row)
    (q_heads, kv_heads), head_dim = row.sizes["heads"], row.sizes["head_dim"]
    positions = integers([p for queries, keys in row.sequences for p in range(keys - queries, keys)])
    owners = integers([b for b, (queries, _) in enumerate(row.sequences) for _ in range(queries)])
    most = max(keys for _, keys in row.sequences)
    sizes = pages.sizes(row)
    extra = {"tokens": row.tokens, "rotary_dim": head_dim, "max_positions": most}
    try:
        found = ours.paged("kv_cache.rope_append", APPEND, lambda size: {**sizes(size), **extra})
    except LookupError:
        found = ours.paged("kv_cache.rope_append", PACKED_APPEND, lambda size: {**sizes(size), **extra})
    artifact, dimensions, layout, page_size = found
    packed = "qkv" in artifact.operands
    inverse = 10_000.0 ** (-torch.arange(0, head_dim, 2, device="cuda") / head_dim)
    angles = torch.arange(most, device="cuda")[:, None] * inverse
    shared = {
        "positions": positions,
        "query_start": integers(starts([queries for queries, _ in row.sequences])),
        "block_table": pages.table[page_size],
        "rotations": torch.stack((angles.cos(), angles.sin()), -1).contiguous(),
    }
    sets, theirs = [], []
    for _ in range(number_of_sets(row)):
        k_pool, v_pool = pages.pool(row), pages.pool(row)
        own = {"k_pages": as_ours(k_pool, layout, page_size), "v_pages": as_ours(v_pool, layout, page_size)}
        own = {name: pool.clone() for name, pool in own.items()}
        q, k, v = (randn(row.tokens, heads, head_dim) for heads in (q_heads, kv_heads, kv_heads))
        own |= {"qkv": torch.cat((q, k, v), 1)} if packed else {"q": q, "k": k, "v": v}
        sets.append({**own, **shared, "q_out": torch.zeros_like(q)})
        # The peer turns in place.
        theirs.append((q.clone(), k.clone(), v, k_pool, v_pool))
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1).contiguous()
    peers = {"flashinfer": lambda: append_calls(row, pages, positions, owners, cos_sin, theirs)}

    def results(_returned: None) -> list[tuple[torch.Tensor, torch.Tensor]]:
        # Turned once more with every call, so only after the first one.
        found = [(sets[0]["q_out"], theirs[0][0])]
        for name, pool in zip(("k_pages", "v_pages"), theirs[0][3:], strict=True):
            found.append((sets[0][name], as_ours(pool, layout, page_size)))
        return found

    calls = ours.calls(artifact, dimensions, sets)
    return Sides(artifact.name, calls, peers, results, len(sets), f"{layout} {page_size}", f"nhd {PEER_PAGE}")


def append_calls(
    row: Row, pages: Pages, positions: torch.Tensor, owners: torch.Tensor, cos_sin: torch.Tensor, sets: Sequence[Any]
) -> list[Call]:
    """FlashInfer's rotation in place, and its append."""
    library = flashinfer()
    head_dim = row.sizes["head_dim"]
    where = (pages.indices.cuda(), pages.indptr.cuda(), pages.last.cuda())

    turn, append = library.apply_rope_with_cos_sin_cache_inplace, library.append_paged_kv_cache

    def call_on(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *pools: torch.Tensor) -> Call:
        flat_q, flat_k = q.flatten(1), k.flatten(1)

        def call() -> None:
            turn(positions, flat_q, flat_k, head_dim, cos_sin, is_neox=True)
            append(k, v, owners, positions, pools, *where, kv_layout="NHD")

        return call

    return [call_on(*s) for s in sets]


MAKERS: Mapping[str, Callable[[Row, Ours], Sides]] = {
    "paged_decode": paged_attention,
    "paged_prefill": paged_attention,
    "ragged_prefill": ragged_prefill,
    "rope_append": rope_append,
    "gemm": gemm,
    "rms_norm": rms_norm,
}
