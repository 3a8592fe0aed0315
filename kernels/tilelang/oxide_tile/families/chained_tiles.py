"""The gated product of some ten to some hundred rows of a weighted input: `chained_gemm.scaled_swiglu` in larger tiles.

Tiles of 64 rows are walked as `prefill_gemm` walks its own, by as many blocks as there are multiprocessors: one warp
loads slices of k into a ring, a warpgroup multiplies. The other warps of the loading warpgroup meanwhile add up the
squares of the tile's tokens in the order of `chained_gemm`, so that a result has the same bits in either kernel.
"""

from dataclasses import replace
from functools import partial

import tilelang.language as T

from oxide_tile.definition import Condition, Definition, DefinitionError, Domain
from oxide_tile.families.chained import SQUARES, SUMS, swiglu_contract
from oxide_tile.families.chained_gemm import AHEAD
from oxide_tile.families.common import F32, I32, TILE_DTYPES, part
from oxide_tile.families.gemm import silu
from oxide_tile.families.persistent import CONSUMER_REGISTERS, MULTIPROCESSORS, ceil_div, locate
from oxide_tile.families.ring import BLOCK_K, WARP, WARPGROUP, fill, load_rows, multiply_slice, multiply_tile

# Rows of a tile, and of it those that a warp adds up side by side.
BLOCK_M, SIDE = 64, 4
# Registers of a thread that loads or adds up; those of both warpgroups are no more than a block begins with.
PRODUCER_REGISTERS = 96
# Warps that add up, and buffers of the scales of a tile's tokens.
ADDERS, BUFFERS = WARPGROUP // WARP - 1, 2
PASS_CONFIGS = {"tl.disable_safe_memory_legalize": True, "tl.disable_thread_storage_sync": True}


@T.macro
def load_weights(weight, gates, ups, full, column, n, columns, stage, at):
    """A slice of a tile's gate and up rows."""
    load_rows(weight, gates, full, column, columns, stage, at)
    T.tma_copy(
        weight[n + column * columns : n + (column + 1) * columns, at : at + BLOCK_K],
        ups[stage, 0:columns, 0:BLOCK_K],
        barrier=full[stage],
    )


@T.macro
def tile_of(block, round_, rows, tiles, panel):
    """Row and column of a block's tile in a round."""
    at = T.alloc_var(I32, init=block + round_ * MULTIPROCESSORS)
    _, row, column = locate(at, rows, tiles, panel, 1)
    return row, column


@T.macro
def produce(
    input, weight, inputs, gates, ups, full, free, block, rounds, rows, tiles, panel, count, n, columns, stages
):  # fmt: skip
    """Fill the ring, tile after tile."""
    for round_ in T.serial(rounds):
        row, column = tile_of(block, round_, rows, tiles, panel)
        fill(
            partial(load_weights, weight, gates, ups, full, column, n, columns), input, inputs, full, free, row, 0,
            round_, count, BLOCK_M, BLOCK_K, stages, WARPGROUP,
        )  # fmt: skip


@T.macro
def add_up_squares(squares, scales, buffer, row, adder, m, vectors, epsilon):
    """One over the root mean square of the tokens of a tile that are `adder`'s; the order is that of `chained_gemm`."""
    lane = T.get_thread_binding() % WARP
    ahead = T.alloc_local((SIDE, AHEAD, SUMS), F32)
    square = T.alloc_local((SIDE,), F32)
    for turn in T.serial(-(-BLOCK_M // (SIDE * ADDERS))):
        for i in T.unroll(SIDE):
            within = (turn * SIDE + i) * ADDERS + adder
            for v in T.unroll(AHEAD):
                for j in T.vectorized(SUMS):
                    ahead[i, v, j] = 0.0
                if within < BLOCK_M and row * BLOCK_M + within < m and v * WARP + lane < vectors:
                    for j in T.vectorized(SUMS):
                        ahead[i, v, j] = squares[row * BLOCK_M + within, v * WARP + lane, j]
        for i in T.unroll(SIDE):
            square[i] = 0.0
            for v in T.unroll(AHEAD):
                for j in T.unroll(SUMS):
                    square[i] += ahead[i, v, j]
        for v in T.serial(T.ceildiv(vectors, WARP) - AHEAD):
            at = T.alloc_var(I32, init=(v + AHEAD) * WARP + lane)
            for i in T.unroll(SIDE):
                within = (turn * SIDE + i) * ADDERS + adder
                if within < BLOCK_M and row * BLOCK_M + within < m and at < vectors:
                    for j in T.unroll(SUMS):
                        square[i] += squares[row * BLOCK_M + within, at, j]
        for distance in T.unroll(5):
            for i in T.unroll(SIDE):
                square[i] += T.shfl_xor(square[i], 1 << distance)
        if lane == 0:
            for i in T.unroll(SIDE):
                within = (turn * SIDE + i) * ADDERS + adder
                if within < BLOCK_M:
                    scales[buffer, within] = T.rsqrt(square[i] / T.cast(vectors * (SUMS * SQUARES), F32) + epsilon)


@T.macro
def multiply(inputs, gates, ups, gate, up, columns, stage, clear):
    """Begin the products of one slice."""
    multiply_slice(inputs, gates, gate, BLOCK_M, columns, BLOCK_K, stage, clear)
    multiply_slice(inputs, ups, up, BLOCK_M, columns, BLOCK_K, stage, clear)


def scaled_swiglu(dtype: str, block_n: int, stages: int, panel: int) -> Definition:
    """`silu(scale * gate) * (scale * up)`; `weight` is `[2 n, k]`, gate rows first, and a tile has as many of either.

    `panel` tile rows are walked before the next tile column.
    """
    if block_n % 16:
        raise DefinitionError(f"no schedule of {block_n} weight rows")
    tile, columns = TILE_DTYPES[dtype], block_n // 2
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")
    pairs, vectors = T.dynamic("pairs_of_row"), T.dynamic("vectors")

    @T.prim_func
    def function(
        input: T.Tensor((m, k), tile),
        squares: T.Tensor((m, vectors, SUMS), F32),
        weight: T.Tensor((n * 2, k), tile),
        output: T.Tensor((m, pairs, 2), tile),
        epsilon: T.float32,
    ):
        with T.Kernel(
            T.min(T.ceildiv(m, BLOCK_M) * T.ceildiv(n, columns), MULTIPROCESSORS), threads=2 * WARPGROUP
        ) as block:
            inputs = T.alloc_shared((stages, BLOCK_M, BLOCK_K), tile)
            gates = T.alloc_shared((stages, columns, BLOCK_K), tile)
            ups = T.alloc_shared((stages, columns, BLOCK_K), tile)
            scales = T.alloc_shared((BUFFERS, BLOCK_M), F32)
            full, free = T.alloc_barrier([1] * stages), T.alloc_barrier([1] * stages)
            scaled, taken = T.alloc_barrier([ADDERS] * BUFFERS), T.alloc_barrier([WARPGROUP] * BUFFERS)
            gate = T.alloc_fragment((BLOCK_M, columns), F32)
            up = T.alloc_fragment((BLOCK_M, columns), F32)
            thread = T.get_thread_binding()
            T.pdl_trigger()
            rows = T.alloc_var(I32, init=T.ceildiv(m, BLOCK_M))
            tiles = T.alloc_var(I32, init=T.ceildiv(n, columns))
            count = T.alloc_var(I32, init=T.ceildiv(k, BLOCK_K))
            rounds = T.alloc_var(I32, init=T.ceildiv(rows * tiles - block, MULTIPROCESSORS))
            if thread >= WARPGROUP:
                T.set_max_nreg(PRODUCER_REGISTERS, 0)
                if thread < WARPGROUP + WARP:
                    produce(
                        input, weight, inputs, gates, ups, full, free, block, rounds, rows, tiles, panel, count, n,
                        columns, stages,
                    )  # fmt: skip
                else:
                    T.pdl_sync()
                    for round_ in T.serial(rounds):
                        row, column = tile_of(block, round_, rows, tiles, panel)
                        buffer = round_ % BUFFERS
                        T.barrier_wait(taken[buffer], round_ // BUFFERS % 2 ^ 1)
                        adder = thread // WARP - WARPGROUP // WARP - 1
                        add_up_squares(squares, scales, buffer, row, adder, m, vectors, epsilon)
                        if thread % WARP == 0:
                            T.barrier_arrive(scaled[buffer])
            else:
                T.set_max_nreg(CONSUMER_REGISTERS[1], 1)
                for round_ in T.serial(rounds):
                    row, column = tile_of(block, round_, rows, tiles, panel)
                    buffer = round_ % BUFFERS
                    multiply_tile(
                        partial(multiply, inputs, gates, ups, gate, up, columns), (gate, up),
                        columns * BLOCK_M // WARPGROUP, full, free, round_, count, stages,
                    )  # fmt: skip
                    T.barrier_wait(scaled[buffer], round_ // BUFFERS % 2)
                    for i, j in T.Parallel(BLOCK_M, columns):
                        gate[i, j] = silu(gate[i, j] * scales[buffer, i]) * (up[i, j] * scales[buffer, i])
                    T.barrier_arrive(taken[buffer])
                    for i, pair in T.Parallel(BLOCK_M, columns // 2):
                        at = column * (columns // 2) + pair
                        if row * BLOCK_M + i < m and at < pairs:
                            for lane in T.vectorized(2):
                                output[row * BLOCK_M + i, at, lane] = gate[i, pair * 2 + lane]

    return replace(
        swiglu_contract(function, dtype),
        # Slices of all tiles are counted in 32 bits.
        conditions=(
            Condition(ceil_div("m", BLOCK_M) * ceil_div("n", columns) * ceil_div("k", BLOCK_K), Domain(max=2**30)),
        ),
        derived={"pairs_of_row": part("n", 2), "vectors": part("k", SUMS * SQUARES)},
        pass_configs=PASS_CONFIGS,
    )
