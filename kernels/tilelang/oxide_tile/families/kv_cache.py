"""Rotary embedding of new queries and keys, and the new keys' and values' way into their pages: `kv_cache.rope_append`.

One block a token. The projections come packed, `[tokens, num_q_heads + 2 * num_kv_heads, head_dim]`, as one matrix
product leaves them. A thread turns 8 pairs at a time: 8 elements of the first half of a head and 8 of the second.
"""

import tilelang.language as T

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families.common import (
    F32,
    I32,
    LENGTH_OUT_OF_RANGE,
    PAGE_OUT_OF_RANGE,
    PAGE_SIZE,
    PAGING,
    POSITION_OUT_OF_RANGE,
    STATUS,
    TILE_DTYPES,
    exactly,
    overlap_predecessor,
    report,
)
from oxide_tile.families.starts import START_OUT_OF_RANGE, check_start

# Pairs that a thread turns at once: a 16-byte load from either half of a head.
PAIRS = 8


def rope_append(dtype: str, head_dim: int, qk_norm: str, threads: int) -> Definition:
    """Queries turned into `q_out`, keys turned into `k_pages`, values copied into `v_pages`.

    With `qk_norm` "present" each head of queries and keys is first normalized by its root mean square and weighted, and
    rounded to `dtype`, as `normalization.rms_norm` does it.
    """
    tile = TILE_DTYPES[dtype]
    normalizes = qk_norm == "present"
    half = head_dim // 2
    slices = half // PAIRS  # threads that share a head
    tokens, batch, qkv_heads = T.dynamic("tokens"), T.dynamic("batch"), T.dynamic("qkv_heads")
    num_q_heads, num_kv_heads = T.dynamic("num_q_heads"), T.dynamic("num_kv_heads")
    num_pages, max_pages, max_positions = T.dynamic("num_pages"), T.dynamic("max_pages"), T.dynamic("max_positions")

    @T.prim_func
    def function(
        qkv: T.Tensor((tokens, qkv_heads, head_dim), tile),
        positions: T.Tensor((tokens,), I32),
        query_start: T.Tensor((batch + 1,), I32),
        block_table: T.Tensor((batch, max_pages), I32),
        rotations: T.Tensor((max_positions, half, 2), F32),
        q_weight: T.Tensor((head_dim,), tile),
        k_weight: T.Tensor((head_dim,), tile),
        q_out: T.Tensor((tokens, num_q_heads, head_dim), tile),
        k_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim), tile),
        v_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim), tile),
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
            turns = position >= 0 and position < max_positions
            fits = sequence < batch and position >= 0 and position < max_pages * PAGE_SIZE
            if fits:
                page = block_table[sequence, position // PAGE_SIZE]
            appends = turns and page >= 0 and page < num_pages
            if thread == 0:
                if not turns:
                    report(status, POSITION_OUT_OF_RANGE, token)
                if not fits:
                    report(status, LENGTH_OUT_OF_RANGE, token)
                if fits and (page < 0 or page >= num_pages):
                    report(status, PAGE_OUT_OF_RANGE, token)

            low = T.alloc_local((PAIRS,), F32)
            high = T.alloc_local((PAIRS,), F32)
            turned_low = T.alloc_local((PAIRS,), tile)
            turned_high = T.alloc_local((PAIRS,), tile)
            square = T.alloc_local((1,), F32)
            angle = T.if_then_else(turns, position, 0)
            slot = T.if_then_else(appends, position % PAGE_SIZE, 0)
            for step in T.serial(T.ceildiv((num_q_heads + num_kv_heads) * slices, threads)):
                item = step * threads + thread
                head = item // slices
                at = item % slices * PAIRS
                if head < num_q_heads + num_kv_heads:
                    for j in T.vectorized(PAIRS):
                        low[j] = T.cast(qkv[token, head, at + j], F32)
                    for j in T.vectorized(PAIRS):
                        high[j] = T.cast(qkv[token, head, half + at + j], F32)
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
                    for j in T.serial(PAIRS):
                        cosine = rotations[angle, at + j, 0]
                        sine = rotations[angle, at + j, 1]
                        turned_low[j] = T.cast(low[j] * cosine - high[j] * sine, tile)
                        turned_high[j] = T.cast(high[j] * cosine + low[j] * sine, tile)
                    if head < num_q_heads:
                        for j in T.vectorized(PAIRS):
                            q_out[token, head, at + j] = turned_low[j]
                        for j in T.vectorized(PAIRS):
                            q_out[token, head, half + at + j] = turned_high[j]
                    elif appends:
                        for j in T.vectorized(PAIRS):
                            k_pages[page, head - num_q_heads, slot, at + j] = turned_low[j]
                        for j in T.vectorized(PAIRS):
                            k_pages[page, head - num_q_heads, slot, half + at + j] = turned_high[j]
            for step in T.serial(T.ceildiv(num_kv_heads * slices * 2, threads)):
                item = step * threads + thread
                head = item // (slices * 2)
                at = item % (slices * 2) * PAIRS
                if head < num_kv_heads and appends:
                    for j in T.vectorized(PAIRS):
                        v_pages[page, head, slot, at + j] = qkv[token, num_q_heads + num_kv_heads + head, at + j]

    pool = ("num_pages", "num_kv_heads", PAGE_SIZE, head_dim)
    heads = Name("num_q_heads") + Name("num_kv_heads") * 2
    return Definition(
        contract="kv_cache.rope_append",
        function=function,
        properties={"dtype": dtype, "pairing": "neox", **PAGING, "qkv": "packed", "qk_norm": qk_norm},
        dimensions={
            "tokens": Domain(),
            "batch": Domain(),
            "num_q_heads": Domain(max=1024),
            "num_kv_heads": Domain(max=1024),
            "head_dim": exactly(head_dim),
            "rotary_dim": exactly(head_dim),
            "page_size": exactly(PAGE_SIZE),
            "num_pages": Domain(),
            "max_pages": Domain(max=2**24),
            "max_positions": Domain(),
        },
        operands={
            "qkv": Tensor(("tokens", heads, head_dim)),
            "positions": Tensor(("tokens",), alignment=4),
            "query_start": Tensor((Name("batch") + 1,), alignment=4),
            "block_table": Tensor(("batch", "max_pages"), alignment=4),
            "rotations": Tensor(("max_positions", half, 2)),
            "q_weight": Tensor((head_dim,)),
            "k_weight": Tensor((head_dim,)),
            "q_out": Tensor(("tokens", "num_q_heads", head_dim), "write"),
            "k_pages": Tensor(pool, "write"),
            "v_pages": Tensor(pool, "write"),
            "status": STATUS,
        },
        attributes={"epsilon": "f32"} if normalizes else {},
        derived={"qkv_heads": heads},
        constants={"page_size": PAGE_SIZE, "head_dim": head_dim},
    )
