"""Matrix products of many rows with a gate: `gemm.dense` with `activation.swiglu` of its result.

`output[m, n] = silu(input . gate^T) * (input . up^T)`. Blocks, ring and warps are those of `prefill_gemm`, but a
gate's rows and those of its up projection lie below each other in shared memory, so that one instruction multiplies
with both and reads the input once for them: 10 KB for 64 rows, 256 weight rows and 16 elements of k, where two
instructions read 12. The blocks of a cluster load their weights once for all.

m, n and k are symbolic. Every element of `output` is summed over k in an order that does not depend on m.
"""

from dataclasses import replace
from functools import partial

import tilelang.language as T

from oxide_tile.definition import Condition, Definition, DefinitionError, Domain
from oxide_tile.families.common import F32, I32, TILE_DTYPES
from oxide_tile.families.gemm import definition, silu
from oxide_tile.families.persistent import (
    CONSUMER_REGISTERS,
    MULTIPROCESSORS,
    PRODUCER_REGISTERS,
    RESULT_BUFFERS,
    SLICE,
    ceil_div,
    locate,
    store_slices,
)
from oxide_tile.families.ring import BLOCK_K, WARP, WARPGROUP, fill, multiply_slice, multiply_tile

CONSUMERS = 2
CONSUMER_THREADS = CONSUMERS * WARPGROUP
THREADS = CONSUMER_THREADS + WARPGROUP


def dense(
    dtype: str,
    output_dtype: str,
    epilogue: str,
    block_m: int,
    block_n: int,
    stages: int,
    panel: int,
    cluster: int,
) -> Definition:
    """Tiles of block_m rows by block_n weight rows, half of them a gate's and half the up projection's.

    `panel` tile rows are walked before the next tile column. The blocks of a cluster, two or more, take tiles of one
    column below each other and load their weights once for all.
    """
    if (output_dtype, epilogue) != (dtype, "swiglu"):
        raise DefinitionError(f"only a gated product in {dtype} is made, not {epilogue} in {output_dtype}")
    tile, columns, clusters = TILE_DTYPES[dtype], block_n // 2, MULTIPROCESSORS // cluster
    if columns % SLICE:
        raise DefinitionError(f"results leave in slices of {SLICE} columns, which {columns} is no multiple of")
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")

    @T.macro
    def tile_of(block, round_, rows, tiles):
        """Row and column of a block's tile in a round."""
        place = T.alloc_var(I32, init=T.truncdiv(block, cluster) + round_ * clusters)
        _, cluster_row, column = locate(place, rows, tiles, panel // cluster, 1)
        return cluster_row * cluster + T.truncmod(block, cluster), column

    @T.macro
    def load_weights(weight, weights, full, column, stage, at):
        for half in T.unroll(2):
            T.tma_copy(
                weight[half * n + column * columns : half * n + (column + 1) * columns, at : at + BLOCK_K],
                weights[stage, half * columns : (half + 1) * columns, 0:BLOCK_K],
                barrier=full[stage],
                cluster_mask=(1 << cluster) - 1,
            )

    @T.macro
    def produce(input, weight, inputs, weights, full, free, block, rounds, rows, tiles, count):
        """Fill the ring, tile after tile."""
        for round_ in T.serial(rounds):
            row, column = tile_of(block, round_, rows, tiles)
            fill(
                partial(load_weights, weight, weights, full, column), input, inputs, full, free, row, 0, round_, count,
                block_m, BLOCK_K, stages, CONSUMER_THREADS,
            )  # fmt: skip

    @T.macro
    def consume(inputs, weights, results, full, free, output, block, rounds, rows, tiles, count):
        """Every tile of one block."""
        sum_ = T.alloc_fragment((block_m, block_n), F32)
        result = T.alloc_fragment((block_m, columns), F32)
        up = T.alloc_fragment((block_m, columns), F32)
        for round_ in T.serial(rounds):
            row, column = tile_of(block, round_, rows, tiles)
            multiply_tile(
                partial(multiply_slice, inputs, weights, sum_, block_m, block_n, BLOCK_K), (sum_,),
                block_m * block_n // CONSUMER_THREADS, full, free, round_, count, stages, cluster,
            )  # fmt: skip
            # Nothing more comes from the peers or goes to them, and they need not wait for results.
            if round_ == rounds - 1:
                T.cluster_arrive()
            for i, j in T.Parallel(block_m, columns):
                result[i, j] = sum_[i, j]
            for i, j in T.Parallel(block_m, columns):
                up[i, j] = sum_[i, columns + j]
            for i, j in T.Parallel(block_m, columns):
                result[i, j] = silu(result[i, j]) * up[i, j]
            store_slices(
                result, results, output, row, column, round_ * (columns // SLICE), block_m, columns, CONSUMER_THREADS
            )
        T.tma_store_wait(0)

    @T.prim_func
    def function(
        input: T.Tensor((m, k), tile),
        weight: T.Tensor((n * 2, k), tile),
        output: T.Tensor((m, n), tile),
    ):
        with T.Kernel(
            T.min(T.ceildiv(m, block_m * cluster) * T.ceildiv(n, columns), clusters) * cluster,
            threads=THREADS,
            cluster_dims=cluster,
        ) as block:
            inputs = T.alloc_shared((stages, block_m, BLOCK_K), tile)
            weights = T.alloc_shared((stages, block_n, BLOCK_K), tile)
            results = T.alloc_shared((RESULT_BUFFERS, block_m, SLICE), tile)
            full = T.alloc_barrier([1] * stages)
            free = T.alloc_cluster_barrier([CONSUMERS * cluster] * stages)
            thread = T.get_thread_binding()
            T.pdl_trigger()
            # Variables, because the compiler writes other expressions out at every use.
            rows = T.alloc_var(I32, init=T.ceildiv(m, block_m * cluster))
            tiles = T.alloc_var(I32, init=T.ceildiv(n, columns))
            count = T.alloc_var(I32, init=T.ceildiv(k, BLOCK_K))
            rounds = T.alloc_var(I32, init=T.ceildiv(rows * tiles - T.truncdiv(block, cluster), clusters))
            if thread >= CONSUMER_THREADS:
                T.set_max_nreg(PRODUCER_REGISTERS, 0)
                if thread < CONSUMER_THREADS + WARP:
                    produce(input, weight, inputs, weights, full, free, block, rounds, rows, tiles, count)
                T.sync_warp()
                T.cluster_arrive()
            else:
                T.set_max_nreg(CONSUMER_REGISTERS[CONSUMERS], 1)
                consume(inputs, weights, results, full, free, output, block, rounds, rows, tiles, count)
            # A block's memory stays until its peers send nothing more into it.
            T.sync_warp()
            T.cluster_wait()

    return replace(
        definition(function, dtype, output_dtype, epilogue),
        # Slices of all tiles are counted in 32 bits.
        conditions=(
            Condition(ceil_div("m", block_m) * ceil_div("n", columns) * ceil_div("k", BLOCK_K), Domain(max=2**30)),
        ),
        constants={"splits": 1, "multiprocessors": MULTIPROCESSORS},
        # Every index is checked above or by the tensor maps, and every barrier set by hand.
        pass_configs={"tl.disable_safe_memory_legalize": True, "tl.disable_thread_storage_sync": True},
    )
