"""New keys and values on their way into their pages: `kv_cache.paged_append`, and `rope_append`, which turns heads too.

One block a token. A model's projections come packed, `[tokens, num_q_heads + 2 * num_kv_heads, head_dim]`, as one
matrix product leaves them; or queries, keys and values are apart. A thread moves 8 pairs at a time: 8 elements of the
first half of a head and 8 of the second. They are the same pairs of all its heads, so it reads their cosines and sines
once, and what it moves of `ahead` heads is on its way at once.

A block may begin before the kernel ahead has ended. With `settled`, and where there are so few tokens that all blocks
do, it then finds its token's place and angles, and waits before it reads heads. Where there are more, heads are on
their way while it does so.
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
    report,
)
from oxide_tile.families.rotation import PAIRS, load_turns
from oxide_tile.families.starts import START_OUT_OF_RANGE, check_start

# Tokens of a step whose blocks are all placed at once.
FEW_TOKENS = 1024


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
    ahead: int,
    blocks: int,
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
        function=append(dtype, head_dim, keys, form, threads, ahead, blocks),
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


def paged_append(
    dtype: str, head_dim: int, layout: str, page_size: int, threads: int, ahead: int, blocks: int
) -> Definition:
    """Keys copied into `k_pages`, values into `v_pages`."""
    keys = Keys(layout, page_size)
    return Definition(
        contract="kv_cache.paged_append",
        function=append(dtype, head_dim, keys, Form(False, False, False), threads, ahead, blocks),
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


def append(dtype: str, head_dim: int, keys: Keys, form: Form, threads: int, ahead: int, blocks: int) -> object:
    """The kernel. Of its tensors, those that this form has no use for are not in what it is lowered to."""
    normalizes, packed, rotates = form.normalizes, form.packed, form.rotates
    tile = TILE_DTYPES[dtype]
    half = head_dim // 2
    slices = half // PAIRS  # threads that share a head
    tokens, batch, qkv_heads = T.dynamic("tokens"), T.dynamic("batch"), T.dynamic("qkv_heads")
    num_q_heads, num_kv_heads = T.dynamic("num_q_heads"), T.dynamic("num_kv_heads")
    num_pages, max_pages, max_positions = T.dynamic("num_pages"), T.dynamic("max_pages"), T.dynamic("max_positions")
    # Keys' heads come after so many, values' after keys'.
    queries = num_q_heads if rotates else 0
    # Slices of heads that a block moves at once.
    moved = threads * ahead

    @T.macro
    def find_place(place, turned_by, positions, query_start, block_table, rotations, token, at):
        """A token's position, sequence and page, and what turns a thread's pairs."""
        thread = T.get_thread_binding()
        place[0] = positions[token]
        place[1] = 0
        place[2] = -1
        if rotates:
            turns = place[0] >= 0 and place[0] < max_positions
            load_turns(rotations, turned_by, T.if_then_else(turns, place[0], 0), at)
        for step in T.serial(T.ceildiv(batch, threads)):
            entry = step * threads + thread
            before = T.if_then_else(entry < batch, query_start[T.min(entry, batch - 1) + 1] <= token, False)
            place[1] += T.syncthreads_count(before)
        if place[1] < batch and place[0] >= 0 and place[0] < max_pages * keys.page_size:
            place[2] = block_table[place[1], place[0] // keys.page_size]

    @T.macro
    def load_heads(qkv, q, k, v, heads, token, first, at):
        """A thread's pairs of the heads whose slices are moved from `first` on."""
        for i in T.unroll(ahead):
            head = (first + i * threads + T.get_thread_binding()) // slices
            if packed:
                if head < num_q_heads + 2 * num_kv_heads:
                    load_head(qkv, heads, i, token, head, at, half)
            else:
                if rotates:
                    if head < num_q_heads:
                        load_head(q, heads, i, token, head, at, half)
                if head >= queries and head < queries + num_kv_heads:
                    load_head(k, heads, i, token, head - queries, at, half)
                if head >= queries + num_kv_heads and head < queries + 2 * num_kv_heads:
                    load_head(v, heads, i, token, head - queries - num_kv_heads, at, half)

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
        settled: T.int32,
    ):
        with T.Kernel(tokens, threads=threads) as token:
            T.annotate_min_blocks_per_sm(blocks)
            thread = T.get_thread_binding()
            at = thread % slices * PAIRS
            place = T.alloc_local((3,), I32)
            turned_by = T.alloc_local((2 * PAIRS,), F32)
            heads = T.alloc_local((ahead, 2, PAIRS), tile)
            early = T.alloc_var(I32, init=T.if_then_else(tokens <= FEW_TOKENS, settled, 0))
            T.pdl_trigger()
            if early != 0:
                find_place(place, turned_by, positions, query_start, block_table, rotations, token, at)
            T.pdl_sync()
            load_heads(qkv, q, k, v, heads, token, 0, at)
            if early == 0:
                find_place(place, turned_by, positions, query_start, block_table, rotations, token, at)
            position, page = place[0], place[2]
            turns = position >= 0 and position < max_positions if rotates else position >= 0
            fits = place[1] < batch and position >= 0 and position < max_pages * keys.page_size
            appends = turns and page >= 0 and page < num_pages
            slot = T.if_then_else(appends, position % keys.page_size, 0)

            count = T.ceildiv((queries + 2 * num_kv_heads) * slices, moved)
            for turn in T.serial(count):
                for i in T.unroll(ahead):
                    head = (turn * moved + i * threads + thread) // slices
                    if normalizes:
                        scale = scale_of(heads, i, head_dim, slices, epsilon)
                        if head < num_q_heads:
                            weigh(heads, q_weight, scale, i, at, half, tile)
                        elif head < num_q_heads + num_kv_heads:
                            weigh(heads, k_weight, scale, i, at, half, tile)
                    if rotates:
                        if head < num_q_heads + num_kv_heads:
                            turn_head(heads, turned_by, i, tile)
                        if head < num_q_heads:
                            store_head(heads, q_out, i, token, head, at, half)
                    if appends and head >= queries and head < queries + num_kv_heads:
                        put(k_pages, heads, i, page, head - queries, slot, at, half, keys.layout)
                    if appends and head >= queries + num_kv_heads and head < queries + 2 * num_kv_heads:
                        put(v_pages, heads, i, page, head - queries - num_kv_heads, slot, at, half, keys.layout)
                if turn + 1 < count:
                    load_heads(qkv, q, k, v, heads, token, (turn + 1) * moved, at)

            if thread == 0:
                if rotates and not turns:
                    report(status, POSITION_OUT_OF_RANGE, token)
                if not fits:
                    report(status, LENGTH_OUT_OF_RANGE, token)
                if fits and (page < 0 or page >= num_pages):
                    report(status, PAGE_OUT_OF_RANGE, token)
            if token == 0:
                for step in T.serial(T.ceildiv(batch, threads)):
                    entry = step * threads + thread
                    if entry < batch:
                        check_start(status, query_start, entry, tokens)
                        if entry == batch - 1 and query_start[batch] < tokens:
                            report(status, START_OUT_OF_RANGE, entry + 1)

    return function


@T.macro
def load_head(source, heads, i, token, head, at, half):
    """A thread's pairs of a head, from `[tokens, heads, head_dim]`."""
    for side in T.unroll(2):
        for j in T.vectorized(PAIRS):
            heads[i, side, j] = source[token, head, side * half + at + j]


@T.macro
def scale_of(heads, i, head_dim, slices, epsilon):
    """One over the root mean square of a head. Every thread of a warp comes here."""
    scale = T.alloc_local((1,), F32)
    scale[0] = 0.0
    for side in T.unroll(2):
        for j in T.unroll(PAIRS):
            scale[0] += T.cast(heads[i, side, j], F32) * T.cast(heads[i, side, j], F32)
    for distance in T.unroll(slices.bit_length() - 1):
        scale[0] += T.shfl_xor(scale[0], 1 << distance)
    scale[0] = T.rsqrt(scale[0] / head_dim + epsilon)
    return scale


@T.macro
def weigh(heads, weight, scale, i, at, half, tile):
    """A thread's pairs of a head by its scale and the weight, rounded."""
    weights = T.alloc_local((PAIRS,), tile)
    for side in T.unroll(2):
        for j in T.vectorized(PAIRS):
            weights[j] = weight[side * half + at + j]
        for j in T.unroll(PAIRS):
            heads[i, side, j] = T.cast(T.cast(heads[i, side, j], F32) * scale[0] * T.cast(weights[j], F32), tile)


@T.macro
def turn_head(heads, turned_by, i, tile):
    """A thread's pairs of a head by their cosines and sines."""
    low = T.alloc_local((1,), F32)
    high = T.alloc_local((1,), F32)
    for j in T.unroll(PAIRS):
        low[0] = T.cast(heads[i, 0, j], F32)
        high[0] = T.cast(heads[i, 1, j], F32)
        heads[i, 0, j] = T.cast(low[0] * turned_by[2 * j] - high[0] * turned_by[2 * j + 1], tile)
        heads[i, 1, j] = T.cast(high[0] * turned_by[2 * j] + low[0] * turned_by[2 * j + 1], tile)


@T.macro
def store_head(heads, target, i, token, head, at, half):
    """A thread's pairs to where `load_head` has them from."""
    for side in T.unroll(2):
        for j in T.vectorized(PAIRS):
            target[token, head, side * half + at + j] = heads[i, side, j]


@T.macro
def put(pool, heads, i, page, head, slot, at, half, layout):
    """A thread's pairs of a head into their slot of a page."""
    for side in T.unroll(2):
        if layout == "hnd":
            for j in T.vectorized(PAIRS):
                pool[page, head, slot, side * half + at + j] = heads[i, side, j]
        else:
            for j in T.vectorized(PAIRS):
                pool[page, slot, head, side * half + at + j] = heads[i, side, j]
