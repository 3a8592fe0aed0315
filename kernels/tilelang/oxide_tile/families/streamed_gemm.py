"""Matrix products of at most 16 rows whose blocks stay: `gemm.dense` with nothing added.

A tile is 16 rows of the weight, the left operand of the tensor cores; tokens are the right one, 8 at a time. Blocks
take every so many-th tile. Their warps share k, each with spans of 256 elements, 512 bytes of a row, that it copies for
itself to a ring in shared memory (`cp.async`). The copies run on from tile to tile, so memory is read all the while and
no warp waits for another. A warp that has one span of k keeps its tokens in registers; otherwise they come again with
every span. One more warp adds up what the others have of a tile, in their order, and stores it while they have the
next. Every lane arrives at the barriers between them, since `racecheck` does not follow one that arrives for its warp.

Lanes load 16 bytes of a row at once, of either operand, as their elements of two products: so a product has every
second quad of 32 elements of k.
"""

from dataclasses import replace

import tilelang.language as T

from oxide_tile.definition import Definition
from oxide_tile.families.chained_gemv import SPAN
from oxide_tile.families.common import F32, I32, TILE_DTYPES, part
from oxide_tile.families.gemm import definition
from oxide_tile.families.persistent import MULTIPROCESSORS
from oxide_tile.families.ranged import PASS_CONFIGS, PIECE, VECTOR
from oxide_tile.families.ring import WARP
from oxide_tile.families.split import PAD, QUAD

# Rows of a tile, and the half of them that is a register's of a tensor core's left operand.
ROWS, HALF = 16, 8
# Tokens of a right operand.
TOKENS = 8
# Places for the sums of a tile: one is added up while the next is filled.
PLACES = 2


def dense_streamed(dtype: str, block_m: int, warps: int, stages: int, blocks: int) -> Definition:
    """Tiles of 16 weight rows by `block_m` tokens; `blocks` fit a multiprocessor, and have `stages` spans on their way.

    `warps` share k, as spans `w`, `w + warps` and so on.
    """
    tile = TILE_DTYPES[dtype]
    rights, most = block_m // TOKENS, blocks * MULTIPROCESSORS
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")
    octets, quads = T.dynamic("octets"), T.dynamic("quads_of_row")

    @T.prim_func
    def function(
        input: T.Tensor((m, octets, VECTOR), tile),
        weight: T.Tensor((n, k), tile),
        output: T.Tensor((m, quads, QUAD), tile),
    ):
        with T.Kernel(T.min(T.ceildiv(n, ROWS), most), T.ceildiv(m, block_m), threads=(warps + 1) * WARP) as (
            block,
            row,
        ):
            ring = T.alloc_shared((stages, warps, ROWS, SPAN), tile)
            sums = T.alloc_shared((PLACES, warps, block_m, ROWS + PAD), F32)
            full, free = T.alloc_barrier([warps * WARP] * PLACES), T.alloc_barrier([WARP] * PLACES)
            T.annotate_min_blocks_per_sm(blocks)
            T.pdl_trigger()
            # Variables, because the compiler writes other expressions out at every use.
            end = T.alloc_var(I32, init=k)
            tiles = T.alloc_var(I32, init=T.truncdiv(T.ceildiv(n, ROWS) - 1 - block, most) + 1)
            if T.get_thread_binding() < warps * WARP:
                multiply(
                    input, weight, ring, sums, full, free, block, most, tiles, row, m, n, end, rights, warps, stages
                )
            else:
                T.pdl_sync()
                add_up(output, sums, full, free, block, most, tiles, row, m, quads, block_m, warps)

    return replace(
        definition(function, dtype, dtype, "none"),
        derived={"octets": part("k", VECTOR), "quads_of_row": part("n", QUAD)},
        # The ring is in use to the end of a block, and so are the sums.
        pass_configs={**PASS_CONFIGS, "tl.disable_shared_memory_reuse": True},
    )


@T.macro
def multiply(input, weight, ring, sums, full, free, block, most, tiles, row, m, n, end, rights, warps, stages):
    """A warp's sums of every tile; the first weights are copied before the predecessor has ended."""
    warp, lane = T.get_thread_binding() // WARP, T.get_thread_binding() % WARP
    steps = T.alloc_var(I32, init=T.ceildiv(end, warps * SPAN))
    spans = T.alloc_var(I32, init=steps * tiles)
    tokens = T.alloc_local((rights, SPAN // PIECE, VECTOR), input.dtype)
    sum_ = T.alloc_local((rights, 2, 4), F32)
    # What is to be copied next: of which tile, and from where on.
    first = T.alloc_var(I32, init=block * ROWS)
    at = T.alloc_var(I32, init=warp * SPAN)
    for slot in T.unroll(stages):
        if slot < spans:
            copy_weights(weight, ring, slot, first, n, at, end)
            at += warps * SPAN
            if at >= steps * warps * SPAN:
                at = warp * SPAN
                first += most * ROWS
        T.ptx_commit_group()
    T.pdl_sync()
    span = T.alloc_var(I32, init=0)
    for turn in T.serial(tiles):
        for right in T.unroll(rights):
            for j in T.unroll(4):
                sum_[right, 0, j] = 0.0
                sum_[right, 1, j] = 0.0
        for step in T.serial(steps):
            slot = T.alloc_var(I32, init=span % stages)
            if steps > 1 or turn == 0:
                load_tokens(input, tokens, row, m, (step * warps + warp) * SPAN, end, rights)
            T.ptx_wait_group(stages - 1)
            T.sync_warp()
            if (step * warps + warp) * SPAN < end:
                multiply_span(ring, tokens, sum_, slot, rights)
            T.sync_warp()
            if span + stages < spans:
                copy_weights(weight, ring, slot, first, n, at, end)
                at += warps * SPAN
                if at >= steps * warps * SPAN:
                    at = warp * SPAN
                    first += most * ROWS
            T.ptx_commit_group()
            span += 1
        T.barrier_wait(free[turn % PLACES], turn // PLACES % 2 ^ 1)
        for right in T.unroll(rights):
            for j in T.unroll(4):
                sums[turn % PLACES, warp, right * TOKENS + lane % 4 * 2 + j % 2, j // 2 * HALF + lane // 4] = (
                    sum_[right, 0, j] + sum_[right, 1, j]
                )
        T.barrier_arrive(full[turn % PLACES])


@T.macro
def copy_weights(weight, ring, slot, first, n, at, end):
    """Begin to copy this warp's span of a tile; what is past the weights and past the end of k is zeros."""
    warp, lane = T.get_thread_binding() // WARP, T.get_thread_binding() % WARP
    for i in T.unroll(ROWS):
        # Of every second row the halves of 128 bytes change places, so that two rows' quads lie in different banks.
        T.ptx_cp_async(
            T.access_ptr(ring[slot, warp, i, (lane ^ (i % 2 * 4)) * VECTOR], "w", VECTOR),
            T.access_ptr(weight[first + i, at + lane * VECTOR], "r", VECTOR),
            VECTOR,
            predicate=at + lane * VECTOR < end and first + i < n,
        )


@T.macro
def load_tokens(input, tokens, row, m, at, end, rights):
    """A lane's elements of this warp's span of all tokens, zeros past the last and past the end of k."""
    lane = T.get_thread_binding() % WARP
    for right in T.unroll(rights):
        for j in T.unroll(SPAN // PIECE):
            for v in T.vectorized(VECTOR):
                tokens[right, j, v] = T.cast(0.0, tokens.dtype)
            token = (row * rights + right) * TOKENS + lane // 4
            if token < m and at + j * PIECE + lane % 4 * VECTOR < end:
                for v in T.vectorized(VECTOR):
                    tokens[right, j, v] = input[token, at // VECTOR + j * (PIECE // VECTOR) + lane % 4, v]


@T.macro
def multiply_span(ring, tokens, sum_, slot, rights):
    """Add the products of a span to the sums of 16 rows; every second product to others, as one waits for the last."""
    warp, lane = T.get_thread_binding() // WARP, T.get_thread_binding() % WARP
    low = T.alloc_local((VECTOR,), tokens.dtype)
    high = T.alloc_local((VECTOR,), tokens.dtype)
    left = T.alloc_local((2, VECTOR), tokens.dtype)
    for j in T.unroll(SPAN // PIECE):
        place = ((j * 4 + lane % 4) ^ (lane // 4 % 2 * 4)) * VECTOR
        for v in T.vectorized(VECTOR):
            low[v] = ring[slot, warp, lane // 4, place + v]
        for v in T.vectorized(VECTOR):
            high[v] = ring[slot, warp, HALF + lane // 4, place + v]
        for side in T.unroll(2):
            for pair in T.unroll(2):
                for v in T.vectorized(2):
                    left[side, pair * 4 + v] = low[side * 4 + pair * 2 + v]
                for v in T.vectorized(2):
                    left[side, pair * 4 + 2 + v] = high[side * 4 + pair * 2 + v]
            for right in T.unroll(rights):
                T.ptx_mma(
                    F32, "m16n8k16", "row", "col", "bf16", "bf16", "fp32",
                    left.data, side * VECTOR, tokens.data, (right * (SPAN // PIECE) + j) * VECTOR + side * 4,
                    sum_.data, (right * 2 + side) * 4, T.bool(False),
                )  # fmt: skip


@T.macro
def add_up(output, sums, full, free, block, most, tiles, row, m, quads_of_row, block_m, warps):
    """Add up the sums of all warps in their order, tile after tile, and store them."""
    lane = T.get_thread_binding() % WARP
    turns = block_m * ROWS // QUAD // WARP
    total = T.alloc_local((turns, QUAD), F32)
    for turn in T.serial(tiles):
        T.barrier_wait(full[turn % PLACES], turn // PLACES % 2)
        for i in T.unroll(turns):
            token, quad = (i * WARP + lane) // (ROWS // QUAD), lane % (ROWS // QUAD)
            for j in T.vectorized(QUAD):
                total[i, j] = sums[turn % PLACES, 0, token, quad * QUAD + j]
            for warp in T.unroll(warps - 1):
                for j in T.vectorized(QUAD):
                    total[i, j] += sums[turn % PLACES, warp + 1, token, quad * QUAD + j]
        T.barrier_arrive(free[turn % PLACES])
        for i in T.unroll(turns):
            token, quad = (i * WARP + lane) // (ROWS // QUAD), lane % (ROWS // QUAD)
            at = (block + turn * most) * (ROWS // QUAD) + quad
            if row * block_m + token < m and at < quads_of_row:
                for j in T.vectorized(QUAD):
                    output[row * block_m + token, at, j] = T.cast(total[i, j], output.dtype)
