"""Matrix products of a decode step of few rows, with no kernel that only normalizes, turns or appends between them.

A norm is spread over the products around it. The one that ends a block (`weighted`) leaves beside the residual stream
what the next product reads, `bf16(stream * norm_weight)`, and the sums of the squares of every 8 elements of the
stream. The next one (`scaled_swiglu`, `scaled_projected`) multiplies that as it is, adds up the sums of a row, and
scales its own results by one over the root mean square. So the input of a product is rounded once, as if it had
been normalized, and no sum depends on how another product is cut.

Tiles, the ring of stages and the clusters are those of `gemm.dense_small`. Here the 64 weight rows of a tile may be two
halves from different places: a gate's and its up projection's, or those of a head, which rotary embedding pairs.
"""

from dataclasses import replace
from functools import partial

import tilelang.language as T

from oxide_tile.definition import Definition, DefinitionError
from oxide_tile.expr import Name
from oxide_tile.families.chained import (
    LANES,
    SQUARES,
    SUMS,
    find_place,
    outputs,
    projected_contract,
    store,
    swiglu_contract,
    turn_pairs,
    weighted_contract,
)
from oxide_tile.families.common import F32, I32, PAGE_SIZE, TILE_DTYPES, part
from oxide_tile.families.gemm import SLAB, multiply, silu
from oxide_tile.families.ring import WARP, WARPGROUP, fill_unrolled
from oxide_tile.families.split import (
    ALL_CONSUMERS,
    PAD,
    QUAD,
    ROWS,
    add_up,
    end_together,
    exchange,
    let_go,
    range_of,
    share_out,
)

WARPS = WARPGROUP // WARP
# Rows of a tile that come from one place, where it has two.
HALF = ROWS // 2
# How often a lane loads sums of squares at once.
AHEAD = 2
# Every index is checked by hand or by the tensor maps, and every barrier set by hand.
PASS_CONFIGS = {"tl.disable_safe_memory_legalize": True, "tl.disable_thread_storage_sync": True}


@T.macro
def load_weights(weight, weights, full, low, high, halves, block_k, stage, at):
    """A slice of k of a tile's rows, from `low` on, and if there are `halves` the second from `high` on."""
    for slab in T.unroll(block_k // SLAB):
        start, end, within = at + slab * SLAB, at + (slab + 1) * SLAB, slab * SLAB
        if halves == 2:
            T.tma_copy(
                weight[low : low + HALF, start:end],
                weights[stage, 0:HALF, within : within + SLAB],
                barrier=full[stage],
            )
            T.tma_copy(
                weight[high : high + HALF, start:end],
                weights[stage, HALF:ROWS, within : within + SLAB],
                barrier=full[stage],
            )
        else:
            T.tma_copy(
                weight[low : low + ROWS, start:end],
                weights[stage, 0:ROWS, within : within + SLAB],
                barrier=full[stage],
            )


@T.macro
def scales_of(squares, scales, row, m, vectors, epsilon, block_m):
    """One over the root mean square of every token, each summed by a warp in an order that only k decides.

    Token `warp + 4 i` is a warp's. Its tokens go side by side, so that one's sum does not wait for another's.
    """
    thread = T.get_thread_binding()
    ahead = T.alloc_local((block_m // WARPS, AHEAD, SUMS), F32)
    square = T.alloc_local((block_m // WARPS,), F32)
    for i in T.unroll(block_m // WARPS):
        token = row * block_m + i * WARPS + thread // WARP
        for v in T.unroll(AHEAD):
            for j in T.vectorized(SUMS):
                ahead[i, v, j] = 0.0
            if token < m and v * WARP + thread % WARP < vectors:
                for j in T.vectorized(SUMS):
                    ahead[i, v, j] = squares[token, v * WARP + thread % WARP, j]
    for i in T.unroll(block_m // WARPS):
        square[i] = 0.0
        for v in T.unroll(AHEAD):
            for j in T.unroll(SUMS):
                square[i] += ahead[i, v, j]
    for v in T.serial(T.ceildiv(vectors, WARP) - AHEAD):
        at = T.alloc_var(I32, init=(v + AHEAD) * WARP + thread % WARP)
        if at < vectors:
            for i in T.unroll(block_m // WARPS):
                token = row * block_m + i * WARPS + thread // WARP
                if token < m:
                    for j in T.unroll(SUMS):
                        square[i] += squares[token, at, j]
    for distance in T.unroll(5):
        for i in T.unroll(block_m // WARPS):
            square[i] += T.shfl_xor(square[i], 1 << distance)
    if thread % WARP == 0:
        for i in T.unroll(block_m // WARPS):
            scales[i * WARPS + thread // WARP] = T.rsqrt(square[i] / T.cast(vectors * (SUMS * SQUARES), F32) + epsilon)


def weighted(dtype: str, block_m: int, block_k: int, stages: int, splits: int) -> Definition:
    """`output = input . weight^T + residual` in f32; `weighted = output * norm_weight`, rounded; and sums of squares.

    `squares[m, j]` is the sum of the squares of `output[m, 8 j .. 8 j + 8]`: of either four in turn, then of the two.
    """
    tile = TILE_DTYPES[dtype]
    width = ROWS // splits
    check_schedule(block_m, block_k, width)
    units = block_m * width // QUAD
    turns = -(-units // WARPGROUP)
    m, k, quads, eights = T.dynamic("m"), T.dynamic("k"), T.dynamic("quads_of_row"), T.dynamic("eights_of_row")
    n = T.dynamic("n")

    @T.prim_func
    def function(
        input: T.Tensor((m, k), tile),
        weight: T.Tensor((n, k), tile),
        residual: T.Tensor((m, quads, QUAD), F32),
        norm_weight: T.Tensor((quads, QUAD), tile),
        output: T.Tensor((m, quads, QUAD), F32),
        weighted: T.Tensor((m, quads, QUAD), tile),
        squares: T.Tensor((m, eights), F32),
    ):
        with T.Kernel(
            T.ceildiv(n, ROWS) * splits, T.ceildiv(m, block_m), threads=WARPGROUP + WARP, cluster_dims=splits
        ) as (block, row):
            weights = T.alloc_shared((stages, ROWS, block_k), tile)
            inputs = T.alloc_shared((stages, block_m, block_k), tile)
            sums = T.alloc_shared((splits, block_m, width + PAD), F32)
            parts = T.alloc_shared((splits, block_m, width + PAD), F32) if splits > 1 else sums
            full, free = T.alloc_barrier([1] * stages), T.alloc_barrier([1] * stages)
            if splits > 1:
                arrived = T.alloc_cluster_barrier([splits - 1])
            sum_ = T.alloc_fragment((ROWS, block_m), F32)
            thread = T.get_thread_binding()
            T.pdl_trigger()
            column, share, first, count = range_of(block, k, block_k, splits)
            if thread >= WARPGROUP:
                low = T.alloc_var(I32, init=column * ROWS)
                fill_unrolled(
                    partial(load_weights, weight, weights, full, low, low, 1, block_k), input, inputs, full, free,
                    row, first, count, block_m, block_k, stages, WARPGROUP,
                )  # fmt: skip
                if splits > 1:
                    let_go(block_m, splits)
            else:
                added = T.alloc_local((turns, QUAD), F32)
                norm = T.alloc_local((turns, QUAD), tile)
                at = T.alloc_var(I32, init=(column * ROWS + share * width) // QUAD)
                for turn in T.unroll(turns):
                    quad = (turn * WARPGROUP + thread) % (width // QUAD)
                    if at + quad < quads:
                        for lane in T.vectorized(QUAD):
                            norm[turn, lane] = norm_weight[at + quad, lane]
                T.pdl_sync()
                for turn in T.unroll(turns):
                    unit = turn * WARPGROUP + thread
                    token, quad = unit // (width // QUAD), unit % (width // QUAD)
                    if unit < units and row * block_m + token < m and at + quad < quads:
                        for lane in T.vectorized(QUAD):
                            added[turn, lane] = residual[row * block_m + token, at + quad, lane]
                multiply(inputs, weights, full, free, sum_, count, block_m, block_k, stages)
                share_out(sum_, sums, parts, share, splits, 1, block_m)
                T.sync_threads(ALL_CONSUMERS, WARPGROUP)
                if splits > 1:
                    exchange(sums, parts, arrived, share, splits, block_m)
                    let_go(block_m, splits)
                for turn in T.unroll(turns):
                    unit = turn * WARPGROUP + thread
                    token, quad = unit // (width // QUAD), unit % (width // QUAD)
                    total = T.alloc_local((QUAD,), F32)
                    rounded = T.alloc_local((QUAD,), tile)
                    square = T.alloc_var(F32, init=0.0)
                    inside = unit < units and row * block_m + token < m and at + quad < quads
                    if inside:
                        add_up(total, parts, token, quad * QUAD, splits)
                        for lane in T.vectorized(QUAD):
                            total[lane] += added[turn, lane]
                        for lane in T.vectorized(QUAD):
                            output[row * block_m + token, at + quad, lane] = total[lane]
                        for lane in T.unroll(QUAD):
                            rounded[lane] = T.cast(total[lane] * T.cast(norm[turn, lane], F32), tile)
                        for lane in T.vectorized(QUAD):
                            weighted[row * block_m + token, at + quad, lane] = rounded[lane]
                        for lane in T.unroll(QUAD):
                            square += total[lane] * total[lane]
                    # The other four of the eight are the next thread's.
                    square += T.shfl_xor(square, 1)
                    if inside and thread % 2 == 0:
                        squares[row * block_m + token, (at + quad) // 2] = square
            if splits > 1:
                end_together(block_m, splits)

    return replace(
        weighted_contract(function, dtype),
        constants={"splits": splits},
        derived={"quads_of_row": part("n", QUAD), "eights_of_row": part("n", SQUARES)},
        pass_configs=PASS_CONFIGS,
    )


def scaled_swiglu(dtype: str, block_m: int, block_k: int, stages: int, splits: int) -> Definition:
    """`silu(scale * gate) * (scale * up)`; `weight` is `[2 n, k]`, gate rows first."""
    tile = TILE_DTYPES[dtype]
    width = HALF // splits
    check_schedule(block_m, block_k, width)
    units = block_m * width // QUAD
    turns = -(-units // WARPGROUP)
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")
    quads, vectors = T.dynamic("quads_of_row"), T.dynamic("vectors")

    @T.prim_func
    def function(
        input: T.Tensor((m, k), tile),
        squares: T.Tensor((m, vectors, SUMS), F32),
        weight: T.Tensor((n * 2, k), tile),
        output: T.Tensor((m, quads, QUAD), tile),
        epsilon: T.float32,
    ):
        with T.Kernel(
            T.ceildiv(n, HALF) * splits, T.ceildiv(m, block_m), threads=WARPGROUP + WARP, cluster_dims=splits
        ) as (block, row):
            weights = T.alloc_shared((stages, ROWS, block_k), tile)
            inputs = T.alloc_shared((stages, block_m, block_k), tile)
            sums = T.alloc_shared((splits, block_m, 2 * width + PAD), F32)
            parts = T.alloc_shared((splits, block_m, 2 * width + PAD), F32) if splits > 1 else sums
            scales = T.alloc_shared((block_m,), F32)
            full, free = T.alloc_barrier([1] * stages), T.alloc_barrier([1] * stages)
            if splits > 1:
                arrived = T.alloc_cluster_barrier([splits - 1])
            sum_ = T.alloc_fragment((ROWS, block_m), F32)
            thread = T.get_thread_binding()
            T.pdl_trigger()
            column, share, first, count = range_of(block, k, block_k, splits)
            if thread >= WARPGROUP:
                low = T.alloc_var(I32, init=column * HALF)
                high = T.alloc_var(I32, init=low + n)
                fill_unrolled(
                    partial(load_weights, weight, weights, full, low, high, 2, block_k), input, inputs, full, free,
                    row, first, count, block_m, block_k, stages, WARPGROUP,
                )  # fmt: skip
                if splits > 1:
                    let_go(block_m, splits)
            else:
                at = T.alloc_var(I32, init=(column * HALF + share * width) // QUAD)
                T.pdl_sync()
                scales_of(squares, scales, row, m, vectors, epsilon, block_m)
                multiply(inputs, weights, full, free, sum_, count, block_m, block_k, stages)
                share_out(sum_, sums, parts, share, splits, 2, block_m)
                T.sync_threads(ALL_CONSUMERS, WARPGROUP)
                if splits > 1:
                    exchange(sums, parts, arrived, share, splits, block_m)
                    let_go(block_m, splits)
                for turn in T.unroll(turns):
                    unit = turn * WARPGROUP + thread
                    token, quad = unit // (width // QUAD), unit % (width // QUAD)
                    gate = T.alloc_local((QUAD,), F32)
                    up = T.alloc_local((QUAD,), F32)
                    if unit < units and row * block_m + token < m and at + quad < quads:
                        add_up(gate, parts, token, quad * QUAD, splits)
                        add_up(up, parts, token, width + quad * QUAD, splits)
                        for lane in T.unroll(QUAD):
                            gate[lane] = silu(gate[lane] * scales[token]) * (up[lane] * scales[token])
                        for lane in T.vectorized(QUAD):
                            output[row * block_m + token, at + quad, lane] = T.cast(gate[lane], tile)
            if splits > 1:
                end_together(block_m, splits)

    return replace(
        swiglu_contract(function, dtype),
        constants={"splits": splits},
        derived={"quads_of_row": part("n", QUAD), "vectors": part("k", SUMS * SQUARES)},
        pass_configs=PASS_CONFIGS,
    )


def scaled_projected(
    dtype: str, head_dim: int, bias: str, block_m: int, block_k: int, stages: int, splits: int
) -> Definition:
    """Query, key and value heads of one token of every sequence; then as `kv_cache.rope_append`.

    A tile is 32 pairs of a head. Projections are not rounded before they are turned.
    """
    tile = TILE_DTYPES[dtype]
    width = HALF // splits
    check_schedule(block_m, block_k, width)
    units = block_m * width // QUAD
    turns = -(-units // WARPGROUP)
    half, biased = head_dim // 2, bias == "present"
    # Tiles of a head, and quads of half a head.
    groups, high_quad = half // HALF, half // QUAD
    # A macro names what is passed to it: m, like that of the other products.
    tokens, k, vectors, rows, quads = (T.dynamic(n) for n in ("m", "k", "vectors", "rows", "quads"))
    batch, max_pages, num_pages = (T.dynamic(name) for name in ("batch", "max_pages", "num_pages"))
    max_positions, num_q_heads, num_kv_heads = (
        T.dynamic(name) for name in ("max_positions", "num_q_heads", "num_kv_heads")
    )

    @T.prim_func
    def function(
        input: T.Tensor((tokens, k), tile),
        squares: T.Tensor((tokens, vectors, SUMS), F32),
        weight: T.Tensor((rows, k), tile),
        bias: T.Tensor((quads, QUAD), tile),
        positions: T.Tensor((tokens,), I32),
        block_table: T.Tensor((batch, max_pages), I32),
        rotations: T.Tensor((max_positions, high_quad, LANES), F32),
        q_out: T.Tensor((tokens, num_q_heads, head_dim // QUAD, QUAD), tile),
        k_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim // QUAD, QUAD), tile),
        v_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim // QUAD, QUAD), tile),
        status: T.Tensor((1,), I32),
        epsilon: T.float32,
    ):
        with T.Kernel(
            rows // ROWS * splits, T.ceildiv(tokens, block_m), threads=WARPGROUP + WARP, cluster_dims=splits
        ) as (block, row):
            weights = T.alloc_shared((stages, ROWS, block_k), tile)
            inputs = T.alloc_shared((stages, block_m, block_k), tile)
            sums = T.alloc_shared((splits, block_m, 2 * width + PAD), F32)
            parts = T.alloc_shared((splits, block_m, 2 * width + PAD), F32) if splits > 1 else sums
            scales = T.alloc_shared((block_m,), F32)
            full, free = T.alloc_barrier([1] * stages), T.alloc_barrier([1] * stages)
            if splits > 1:
                arrived = T.alloc_cluster_barrier([splits - 1])
            sum_ = T.alloc_fragment((ROWS, block_m), F32)
            thread = T.get_thread_binding()
            T.pdl_trigger()
            column, share, first, count = range_of(block, k, block_k, splits)
            head = T.alloc_var(I32, init=column // groups)
            if thread >= WARPGROUP:
                low_row = T.alloc_var(I32, init=head * head_dim + column % groups * HALF)
                high_row = T.alloc_var(I32, init=low_row + half)
                fill_unrolled(
                    partial(load_weights, weight, weights, full, low_row, high_row, 2, block_k), input, inputs, full,
                    free, row, first, count, block_m, block_k, stages, WARPGROUP,
                )  # fmt: skip
                if splits > 1:
                    let_go(block_m, splits)
            else:
                side = T.alloc_local((turns, 2, QUAD), tile)
                turned_by = T.alloc_local((turns, LANES), F32)
                place = T.alloc_local((turns, 3), I32)
                # Of half a head, the first quad of this block.
                at = T.alloc_var(I32, init=(column % groups * HALF + share * width) // QUAD)
                for turn in T.unroll(turns):
                    quad = (turn * WARPGROUP + thread) % (width // QUAD)
                    if biased:
                        for side_of in T.unroll(2):
                            for lane in T.vectorized(QUAD):
                                side[turn, side_of, lane] = bias[
                                    head * (head_dim // QUAD) + side_of * high_quad + at + quad, lane
                                ]
                T.pdl_sync()
                for turn in T.unroll(turns):
                    unit = turn * WARPGROUP + thread
                    token, quad = unit // (width // QUAD), unit % (width // QUAD)
                    if unit < units and row * block_m + token < tokens:
                        find_place(
                            status, positions, block_table, place, turn, row * block_m + token,
                            block == 0 and quad == 0, max_positions, max_pages, num_pages,
                        )  # fmt: skip
                        for lane in T.vectorized(LANES):
                            turned_by[turn, lane] = rotations[T.max(place[turn, 0], 0), at + quad, lane]
                scales_of(squares, scales, row, tokens, vectors, epsilon, block_m)
                multiply(inputs, weights, full, free, sum_, count, block_m, block_k, stages)
                share_out(sum_, sums, parts, share, splits, 2, block_m)
                T.sync_threads(ALL_CONSUMERS, WARPGROUP)
                if splits > 1:
                    exchange(sums, parts, arrived, share, splits, block_m)
                    let_go(block_m, splits)
                for turn in T.unroll(turns):
                    unit = turn * WARPGROUP + thread
                    token, quad = unit // (width // QUAD), unit % (width // QUAD)
                    low = T.alloc_local((QUAD,), F32)
                    high = T.alloc_local((QUAD,), F32)
                    low_out = T.alloc_local((QUAD,), tile)
                    high_out = T.alloc_local((QUAD,), tile)
                    if unit < units and row * block_m + token < tokens:
                        add_up(low, parts, token, quad * QUAD, splits)
                        add_up(high, parts, token, width + quad * QUAD, splits)
                        for lane in T.unroll(QUAD):
                            low[lane] *= scales[token]
                            high[lane] *= scales[token]
                            if biased:
                                low[lane] += T.cast(side[turn, 0, lane], F32)
                                high[lane] += T.cast(side[turn, 1, lane], F32)
                        turn_pairs(
                            low, high, low_out, high_out, turned_by, place, turn,
                            head >= num_q_heads + num_kv_heads, tile,
                        )  # fmt: skip
                        store(
                            q_out, k_pages, v_pages, low_out, high_out, place, turn, row * block_m + token,
                            head, at + quad, high_quad, num_q_heads, num_kv_heads,
                        )  # fmt: skip
            if splits > 1:
                end_together(block_m, splits)

    projection = projected_contract(function, dtype, head_dim, bias)
    return replace(
        projection,
        derived={
            "m": Name("tokens"),
            "rows": outputs(head_dim),
            "quads": outputs(head_dim) // QUAD,
            "k": Name("hidden_size"),
            "vectors": part("hidden_size", SUMS * SQUARES),
        },
        constants={**projection.constants, "splits": splits},
        pass_configs=PASS_CONFIGS,
    )


def check_schedule(block_m: int, block_k: int, width: int) -> None:
    """Warps share tokens, slices are whole slabs, and what a block finishes is whole eights or quads."""
    if block_m % WARPS or block_k % SLAB or width % QUAD:
        raise DefinitionError(f"no schedule of {block_m} tokens, slices of {block_k} and parts of {width} rows")
