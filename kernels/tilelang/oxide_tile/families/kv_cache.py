"""New keys and values on their way into their pages: `kv_cache.paged_append`, and `rope_append`, which turns heads too.

One block a token. A model's projections come packed, `[tokens, num_q_heads + 2 * num_kv_heads, head_dim]`, as one
matrix product leaves them; or queries, keys and values are apart. A thread turns 8 pairs at a time: 8 elements of the
first half of a head and 8 of the second.
"""

from dataclasses import dataclass

import tilelang.language as T

from oxide_tile.definition import Definition, DefinitionError, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families.attention import Keys
from oxide_tile.families.common import (
    F32,
    I32,
    LENGTH_OUT_OF_RANGE,
    PAGE_OUT_OF_RANGE,
    PAGE_SIZE,
    POSITION_OUT_OF_RANGE,
    STATUS,
    TILE_DTYPES,
    exactly,
    overlap_predecessor,
    report,
)
from oxide_tile.families.rotation import PAIRS, load_pairs, store_pairs, turn_pairs
from oxide_tile.families.starts import START_OUT_OF_RANGE, check_start


@dataclass(frozen=True)
class Form:
    """What is done to heads before they are appended, and whether they come packed."""

    rotates: bool
    packed: bool
    normalizes: bool

    def __post_init__(self) -> None:
        if (self.packed and not self.rotates) or (self.normalizes and not self.packed):
            raise DefinitionError("heads that are not turned are apart, and those that are apart are not normalized")


def rope_append(
    dtype: str,
    head_dim: int,
    qk_norm: str,
    threads: int,
    qkv: str = "packed",
    layout: str = "hnd",
    page_size: int = PAGE_SIZE,
) -> Definition:
    """Queries turned into `q_out`, keys turned into `k_pages`, values copied into `v_pages`.

    With `qk_norm` "present" each head of queries and keys is first normalized by its root mean square and weighted, and
    rounded to `dtype`, as `normalization.rms_norm` does it. `qkv` is "packed" or "apart".
    """
    keys, form = Keys(layout, page_size), Form(True, qkv == "packed", qk_norm == "present")
    half = head_dim // 2
    heads = Name("num_q_heads") + Name("num_kv_heads") * 2
    apart = {
        "q": Tensor(("tokens", "num_q_heads", head_dim)),
        **new_keys(head_dim),
    }
    forms = {"qkv": qkv, "qk_norm": qk_norm} if form.packed else {}
    return Definition(
        contract="kv_cache.rope_append",
        function=append(dtype, head_dim, keys, form, threads),
        properties={"dtype": dtype, "pairing": "neox", **paging(dtype, keys), **forms},
        dimensions={
            "tokens": Domain(),
            "batch": Domain(),
            "num_q_heads": Domain(max=1024),
            "num_kv_heads": Domain(max=1024),
            "head_dim": exactly(head_dim),
            "rotary_dim": exactly(head_dim),
            "page_size": exactly(page_size),
            "num_pages": Domain(),
            "max_pages": Domain(max=2**24),
            "max_positions": Domain(),
        },
        operands={
            **({"qkv": Tensor(("tokens", heads, head_dim))} if form.packed else apart),
            "positions": Tensor(("tokens",), alignment=4),
            "query_start": Tensor((Name("batch") + 1,), alignment=4),
            "block_table": Tensor(("batch", "max_pages"), alignment=4),
            "rotations": Tensor(("max_positions", half, 2)),
            "q_weight": Tensor((head_dim,)),
            "k_weight": Tensor((head_dim,)),
            "q_out": Tensor(("tokens", "num_q_heads", head_dim), "write"),
            **pools(head_dim, keys),
        },
        attributes={"epsilon": "f32"} if form.normalizes else {},
        derived={"qkv_heads": heads},
        constants={"page_size": page_size, "head_dim": head_dim},
    )


def paged_append(dtype: str, head_dim: int, layout: str, page_size: int, threads: int) -> Definition:
    """Keys copied into `k_pages`, values into `v_pages`."""
    keys = Keys(layout, page_size)
    return Definition(
        contract="kv_cache.paged_append",
        function=append(dtype, head_dim, keys, Form(False, False, False), threads),
        properties={"dtype": dtype, **paging(dtype, keys)},
        dimensions={
            "tokens": Domain(),
            "batch": Domain(),
            "num_kv_heads": Domain(max=1024),
            "head_dim": exactly(head_dim),
            "page_size": exactly(page_size),
            "num_pages": Domain(),
            "max_pages": Domain(max=2**24),
        },
        operands={
            **new_keys(head_dim),
            "positions": Tensor(("tokens",), alignment=4),
            "query_start": Tensor((Name("batch") + 1,), alignment=4),
            "block_table": Tensor(("batch", "max_pages"), alignment=4),
            **pools(head_dim, keys),
        },
        constants={"page_size": page_size, "head_dim": head_dim},
    )


def paging(dtype: str, keys: Keys) -> dict[str, str]:
    """The properties that say how pages are stored."""
    return {"kv_dtype": dtype, "page_layout": keys.layout}


def new_keys(head_dim: int) -> dict[str, Tensor]:
    """Keys and values that come apart."""
    new = Tensor(("tokens", "num_kv_heads", head_dim))
    return {"k": new, "v": new}


def pools(head_dim: int, keys: Keys) -> dict[str, Tensor]:
    """Where keys and values go."""
    pool = Tensor(keys.pool("num_pages", "num_kv_heads", head_dim), "write")
    return {"k_pages": pool, "v_pages": pool, "status": STATUS}


def append(dtype: str, head_dim: int, keys: Keys, form: Form, threads: int) -> object:
    """The kernel. Of its tensors, those that this form has no use for are not in what it is lowered to."""
    normalizes, packed, rotates = form.normalizes, form.packed, form.rotates
    tile = TILE_DTYPES[dtype]
    half = head_dim // 2
    slices = half // PAIRS  # threads that share a head
    tokens, batch, qkv_heads = T.dynamic("tokens"), T.dynamic("batch"), T.dynamic("qkv_heads")
    num_q_heads, num_kv_heads = T.dynamic("num_q_heads"), T.dynamic("num_kv_heads")
    num_pages, max_pages, max_positions = T.dynamic("num_pages"), T.dynamic("max_pages"), T.dynamic("max_positions")

    @T.prim_func
    def function(
        qkv: T.Tensor((tokens, qkv_heads, head_dim), tile),
        q: T.Tensor((tokens, num_q_heads, head_dim), tile),
        k: T.Tensor((tokens, num_kv_heads, head_dim), tile),
        v: T.Tensor((tokens, num_kv_heads, head_dim), tile),
        positions: T.Tensor((tokens,), I32),
        query_start: T.Tensor((batch + 1,), I32),
        block_table: T.Tensor((batch, max_pages), I32),
        rotations: T.Tensor((max_positions, half, 2), F32),
        q_weight: T.Tensor((head_dim,), tile),
        k_weight: T.Tensor((head_dim,), tile),
        q_out: T.Tensor((tokens, num_q_heads, head_dim), tile),
        k_pages: T.Tensor(keys.pool(num_pages, num_kv_heads, head_dim), tile),
        v_pages: T.Tensor(keys.pool(num_pages, num_kv_heads, head_dim), tile),
        status: T.Tensor((1,), I32),
        epsilon: T.float32,
    ):
        with T.Kernel(tokens, threads=threads) as token:
            overlap_predecessor()
            thread = T.get_thread_binding()
            sequence = T.alloc_var(I32, init=0)
            page = T.alloc_var(I32, init=-1)
            for step in T.serial(T.ceildiv(batch, threads)):
                entry = step * threads + thread
                before = T.if_then_else(entry < batch, query_start[T.min(entry, batch - 1) + 1] <= token, False)
                sequence += T.syncthreads_count(before)
                if token == 0 and entry < batch:
                    check_start(status, query_start, entry, tokens)
                    if entry == batch - 1 and query_start[batch] < tokens:
                        report(status, START_OUT_OF_RANGE, entry + 1)
            position = positions[token]
            turns = position >= 0 and position < max_positions if rotates else position >= 0
            fits = sequence < batch and position >= 0 and position < max_pages * keys.page_size
            if fits:
                page = block_table[sequence, position // keys.page_size]
            appends = turns and page >= 0 and page < num_pages
            if thread == 0:
                if rotates and not turns:
                    report(status, POSITION_OUT_OF_RANGE, token)
                if not fits:
                    report(status, LENGTH_OUT_OF_RANGE, token)
                if fits and (page < 0 or page >= num_pages):
                    report(status, PAGE_OUT_OF_RANGE, token)

            slot = T.if_then_else(appends, position % keys.page_size, 0)
            if rotates:
                low = T.alloc_local((PAIRS,), F32)
                high = T.alloc_local((PAIRS,), F32)
                turned_low = T.alloc_local((PAIRS,), tile)
                turned_high = T.alloc_local((PAIRS,), tile)
                square = T.alloc_local((1,), F32)
                angle = T.if_then_else(turns, position, 0)
                for step in T.serial(T.ceildiv((num_q_heads + num_kv_heads) * slices, threads)):
                    item = step * threads + thread
                    head = item // slices
                    at = item % slices * PAIRS
                    if head < num_q_heads + num_kv_heads:
                        if packed:
                            load_pairs(qkv, low, high, token, head, at, half)
                        elif head < num_q_heads:
                            load_pairs(q, low, high, token, head, at, half)
                        else:
                            load_pairs(k, low, high, token, head - num_q_heads, at, half)
                    if normalizes:
                        square[0] = 0.0
                        for j in T.serial(PAIRS):
                            square[0] += low[j] * low[j] + high[j] * high[j]
                        for distance in T.unroll(slices.bit_length() - 1):
                            square[0] += T.shfl_xor(square[0], 1 << distance)
                        square[0] = T.rsqrt(square[0] / head_dim + epsilon)
                        for j in T.serial(PAIRS):
                            weight_low = T.if_then_else(head < num_q_heads, q_weight[at + j], k_weight[at + j])
                            weight_high = T.if_then_else(
                                head < num_q_heads, q_weight[half + at + j], k_weight[half + at + j]
                            )
                            low[j] = T.cast(T.cast(low[j] * square[0] * T.cast(weight_low, F32), tile), F32)
                            high[j] = T.cast(T.cast(high[j] * square[0] * T.cast(weight_high, F32), tile), F32)
                    if head < num_q_heads + num_kv_heads:
                        if packed:
                            for j in T.serial(PAIRS):
                                cosine = rotations[angle, at + j, 0]
                                sine = rotations[angle, at + j, 1]
                                turned_low[j] = T.cast(low[j] * cosine - high[j] * sine, tile)
                                turned_high[j] = T.cast(high[j] * cosine + low[j] * sine, tile)
                        else:
                            turn_pairs(rotations, low, high, turned_low, turned_high, angle, at, tile)
                        if head < num_q_heads:
                            store_pairs(turned_low, turned_high, q_out, token, head, at, half)
                        elif appends:
                            put(k_pages, turned_low, page, head - num_q_heads, slot, at, keys.layout)
                            put(k_pages, turned_high, page, head - num_q_heads, slot, half + at, keys.layout)
            for step in T.serial(T.ceildiv(num_kv_heads * slices * 2, threads)):
                item = step * threads + thread
                head = item // (slices * 2)
                at = item % (slices * 2) * PAIRS
                if head < num_kv_heads and appends:
                    if packed:
                        move(qkv, v_pages, token, num_q_heads + num_kv_heads + head, page, head, slot, at, keys.layout)
                    else:
                        move(v, v_pages, token, head, page, head, slot, at, keys.layout)
                    if not rotates:
                        move(k, k_pages, token, head, page, head, slot, at, keys.layout)

    return function


@T.macro
def put(pool, values, page, head, slot, at, layout):
    """Some elements of a head into their slot of a page."""
    if layout == "hnd":
        for j in T.vectorized(PAIRS):
            pool[page, head, slot, at + j] = values[j]
    else:
        for j in T.vectorized(PAIRS):
            pool[page, slot, head, at + j] = values[j]


@T.macro
def move(heads, pool, token, from_head, page, head, slot, at, layout):
    """Some elements of a token's head into their slot of a page."""
    if layout == "hnd":
        for j in T.vectorized(PAIRS):
            pool[page, head, slot, at + j] = heads[token, from_head, at + j]
    else:
        for j in T.vectorized(PAIRS):
            pool[page, slot, head, at + j] = heads[token, from_head, at + j]
