"""Matrix products for prefill and large batches: `gemm.dense`, also with `activation.swiglu` of its result.

`output[m, n] = input[m, k] . weight[n, k]^T` in tiles. As many blocks as there are multiprocessors stay for the whole
product and take every so many-th tile. In each, one warp loads slices of k into a ring of shared memory and never waits
for results, so the next tile's operands arrive while this tile's results leave; one or two warpgroups of 64 rows or
more multiply, with one slice in flight while the next begins. Blocks of a cluster have tiles below each other and load
their weights once for all. Where that makes too few tiles, k is cut into `splits` ranges whose sums a second kernel
adds in their order.

A residual is added last; while the tile is multiplied, the loading warp calls it into the L2 cache.

m, n and k are symbolic. Every element of `output` is summed over k in an order that does not depend on m.
"""

from dataclasses import replace
from functools import partial

import tilelang.language as T

from oxide_tile.definition import Condition, Definition, DefinitionError, Domain, Tensor
from oxide_tile.families.common import DTYPE_BYTES, F32, I32, TILE_DTYPES, overlap_predecessor, part, vector_lanes
from oxide_tile.families.gemm import check_epilogue, definition, silu
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
from oxide_tile.families.split import QUAD

# Most columns of a residual whose loads are under way at once.
ADDED_AT_ONCE = 192
# Bytes that one prefetch calls into the L2 cache, and the header of CUTLASS that has it.
LINE_BYTES = 128
PREFETCH_HEADER = "#include <cute/arch/copy.hpp>\n"


def dense(
    dtype: str,
    output_dtype: str,
    epilogue: str,
    block_m: int,
    block_n: int,
    stages: int,
    consumers: int,
    panel: int,
    splits: int,
    cluster: int = 1,
) -> Definition:
    """Tiles of block_m rows by block_n weight rows, of which a gate and its up projection share the tile.

    `panel` tile rows are walked before the next tile column, for the L2 cache. The blocks of a cluster take tiles of
    one column below each other.
    """
    check_epilogue(epilogue)
    gated = epilogue == "swiglu"
    if gated and splits > 1:
        raise DefinitionError("a gate cannot be applied to parts of a sum")
    tile, out_tile, lanes = TILE_DTYPES[dtype], TILE_DTYPES[output_dtype], vector_lanes(dtype)
    columns = block_n // 2 if gated else block_n
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")
    # A row of results in units that keep loads and stores of neighbours together.
    vectors, vectors_of_tile, quads_of_vector = T.dynamic("vectors_of_row"), columns // lanes, lanes // QUAD
    consumer_threads = consumers * WARPGROUP
    threads = consumer_threads + WARPGROUP
    registers = columns * block_m // consumer_threads
    adds = epilogue == "residual" and splits == 1
    through_shared = splits == 1 and output_dtype == dtype and columns % SLICE == 0
    # Columns of the residual that one prefetch calls, and how many such a tile has.
    line = LINE_BYTES // DTYPE_BYTES[output_dtype]
    lines = columns // line if adds else 0
    at_once = columns // 2 if adds and columns > ADDED_AT_ONCE else columns
    clusters = MULTIPROCESSORS // cluster
    everywhere = (1 << cluster) - 1 if cluster > 1 else None

    def cluster_of(block):
        """Which cluster a block is of."""
        return block if cluster == 1 else T.truncdiv(block, cluster)

    def row_of(row, block):
        """A block's row of tiles, of its cluster's row of them."""
        return row if cluster == 1 else row * cluster + T.truncmod(block, cluster)

    @T.macro
    def load_weights(weight, weights, ups, full, column, stage, at):
        T.tma_copy(
            weight[column * columns : (column + 1) * columns, at : at + BLOCK_K],
            weights[stage, 0:columns, 0:BLOCK_K],
            barrier=full[stage],
            cluster_mask=everywhere,
        )
        if gated:
            T.tma_copy(
                weight[n + column * columns : n + (column + 1) * columns, at : at + BLOCK_K],
                ups[stage, 0:columns, 0:BLOCK_K],
                barrier=full[stage],
                cluster_mask=everywhere,
            )

    @T.macro
    def tile_of(block, round_, rows, tiles):
        """The share of k, row and column of a block's tile in a round."""
        place = T.alloc_var(I32, init=cluster_of(block) + round_ * clusters)
        share, cluster_row, column = locate(place, rows, tiles, panel // cluster, splits)
        return share, row_of(cluster_row, block), column

    @T.macro
    def call_residual(residual, row, column, step):
        """Call a line of each row of the tile's residual, while there are any, into the L2 cache."""
        if step < lines:
            vector = column * vectors_of_tile + step * (line // lanes)
            for i in T.unroll(block_m // WARP):
                at = row * block_m + i * WARP + T.get_thread_binding() % WARP
                if at < m and vector < vectors:
                    T.call_extern("handle", "cute::prefetch", T.access_ptr(residual[at, vector, 0], "r"))

    @T.macro
    def produce(input, weight, residual, inputs, weights, ups, full, free, block, rounds, rows, tiles, count):
        """Fill the ring, tile after tile."""
        for round_ in T.serial(rounds):
            share, row, column = tile_of(block, round_, rows, tiles)
            fill(
                partial(load_weights, weight, weights, ups, full, column), input, inputs, full, free, row,
                share * count, round_, count, block_m, BLOCK_K, stages, consumer_threads,
                partial(call_residual, residual, row, column) if adds else None,
            )  # fmt: skip

    @T.macro
    def multiply(inputs, weights, ups, sum_, up, stage, clear):
        """Begin the products of one slice."""
        multiply_slice(inputs, weights, sum_, block_m, columns, BLOCK_K, stage, clear)
        if gated:
            multiply_slice(inputs, ups, up, block_m, columns, BLOCK_K, stage, clear)

    @T.macro
    def add_residual(sum_, residual, row, column, first):
        """To so many columns from `first` on as leave all addresses in registers."""
        for i, pair in T.Parallel(block_m, at_once // 2):
            at = column * vectors_of_tile + (first + pair * 2) // lanes
            for lane in T.vectorized(2):
                sum_[i, first + pair * 2 + lane] += T.if_then_else(
                    row * block_m + i < m and at < vectors,
                    T.cast(residual[row * block_m + i, at, pair * 2 % lanes + lane], F32),
                    0.0,
                )

    @T.macro
    def add_bias(sum_, bias, column):
        for i, j in T.Parallel(block_m, columns):
            # Columns after the end of a row are not stored, whatever is added to them.
            sum_[i, j] += T.cast(bias[T.min(column * vectors_of_tile + j // lanes, vectors - 1), j % lanes], F32)

    @T.macro
    def store(sum_, output, row, column, first):
        for i, pair in T.Parallel(block_m, at_once // 2):
            at = column * vectors_of_tile + (first + pair * 2) // lanes
            if row * block_m + i < m and at < vectors:
                for lane in T.vectorized(2):
                    output[row * block_m + i, at, pair * 2 % lanes + lane] = sum_[i, first + pair * 2 + lane]

    @T.macro
    def store_share(sum_, parts, share, row, column):
        for i, pair in T.Parallel(block_m, columns // 2):
            if row * block_m + i < m and column * vectors_of_tile + pair * 2 // lanes < vectors:
                for lane in T.vectorized(2):
                    parts[
                        share, row * block_m + i, column * vectors_of_tile + pair * 2 // lanes, pair * 2 % lanes + lane
                    ] = sum_[i, pair * 2 + lane]

    @T.macro
    def tiles_of_block(input, weight, bias, residual, output, parts, block):
        """Every tile of one block, by producer and consumers."""
        inputs = T.alloc_shared((stages, block_m, BLOCK_K), tile)
        weights = T.alloc_shared((stages, columns, BLOCK_K), tile)
        ups = T.alloc_shared((stages, columns, BLOCK_K), tile) if gated else weights
        results = T.alloc_shared((RESULT_BUFFERS, block_m, SLICE), tile) if through_shared else inputs
        full = T.alloc_barrier([1] * stages)
        if cluster == 1:
            free = T.alloc_barrier([consumers] * stages)
        else:
            free = T.alloc_cluster_barrier([consumers * cluster] * stages)
        sum_ = T.alloc_fragment((block_m, columns), F32)
        up = T.alloc_fragment((block_m, columns), F32) if gated else sum_
        thread = T.get_thread_binding()
        T.pdl_trigger()
        # Variables, because the compiler writes other expressions out at every use.
        rows = T.alloc_var(I32, init=T.ceildiv(m, block_m * cluster))
        tiles = T.alloc_var(I32, init=T.ceildiv(n, columns))
        # A share's slices after the end of k are zeros.
        count = T.alloc_var(I32, init=T.ceildiv(T.ceildiv(k, BLOCK_K), splits))
        rounds = T.alloc_var(I32, init=T.ceildiv(rows * tiles * splits - cluster_of(block), clusters))
        if thread >= consumer_threads:
            T.set_max_nreg(PRODUCER_REGISTERS, 0)
            if thread < consumer_threads + WARP:
                produce(input, weight, residual, inputs, weights, ups, full, free, block, rounds, rows, tiles, count)
            if cluster > 1:
                T.sync_warp()
                T.cluster_arrive()
        else:
            T.set_max_nreg(CONSUMER_REGISTERS[consumers], 1)
            # Results follow from inputs, which are loaded after the wait; only what consumers read needs their own.
            if adds:
                T.pdl_sync()
            for round_ in T.serial(rounds):
                share, row, column = tile_of(block, round_, rows, tiles)
                multiply_tile(
                    partial(multiply, inputs, weights, ups, sum_, up), (sum_, up) if gated else (sum_,), registers,
                    full, free, round_, count, stages, cluster,
                )  # fmt: skip
                if cluster > 1:
                    # Nothing more comes from the peers or goes to them, and they need not wait for results.
                    if round_ == rounds - 1:
                        T.cluster_arrive()
                if gated:
                    for i, j in T.Parallel(block_m, columns):
                        sum_[i, j] = silu(sum_[i, j]) * up[i, j]
                if epilogue == "bias" and splits == 1:
                    add_bias(sum_, bias, column)
                if adds:
                    for half in T.unroll(columns // at_once):
                        add_residual(sum_, residual, row, column, half * at_once)
                        store(sum_, output, row, column, half * at_once)
                        # The compiler brings no load of the next half before this.
                        T.sync_warp()
                if splits > 1:
                    store_share(sum_, parts, share, row, column)
                elif through_shared:
                    store_slices(
                        sum_, results, output, row, column, round_ * (columns // SLICE), block_m, columns,
                        consumer_threads,
                    )  # fmt: skip
                elif not adds:
                    store(sum_, output, row, column, 0)
            if through_shared:
                T.tma_store_wait(0)
        if cluster > 1:
            # A block's memory stays until its peers send nothing more into it.
            T.sync_warp()
            T.cluster_wait()

    grid = T.min(T.ceildiv(m, block_m * cluster) * T.ceildiv(n, columns) * splits, clusters)
    prelude = PREFETCH_HEADER if adds else None
    if splits == 1:

        @T.prim_func
        def function(
            input: T.Tensor((m, k), tile),
            weight: T.Tensor((n * 2 if gated else n, k), tile),
            bias: T.Tensor((vectors, lanes), tile),
            residual: T.Tensor((m, vectors, lanes), out_tile),
            output: T.Tensor((m, n) if through_shared else (m, vectors, lanes), out_tile),
        ):
            with T.Kernel(grid * cluster, threads=threads, cluster_dims=cluster, prelude=prelude) as block:
                tiles_of_block(input, weight, bias, residual, output, output, block)

    else:

        @T.prim_func
        def function(
            input: T.Tensor((m, k), tile),
            weight: T.Tensor((n, k), tile),
            bias: T.Tensor((vectors, lanes), tile),
            residual: T.Tensor((m, vectors, lanes), out_tile),
            partial: T.Tensor((splits, m, vectors, lanes), F32),
            output: T.Tensor((m, vectors, lanes), out_tile),
        ):
            with T.Kernel(grid * cluster, threads=threads, cluster_dims=cluster) as block:
                tiles_of_block(input, weight, bias, residual, output, partial, block)
            # The compiler gives the second launch the clusters of the first.
            quads = vectors * quads_of_vector
            with T.Kernel(T.ceildiv(quads, WARPGROUP * cluster) * cluster, m, threads=WARPGROUP) as (column, row):
                quad = column * WARPGROUP + T.get_thread_binding()
                vector, at = T.truncdiv(quad, quads_of_vector), T.truncmod(quad, quads_of_vector) * QUAD
                total = T.alloc_local((splits, QUAD), F32)
                added = T.alloc_local((QUAD,), F32)
                overlap_predecessor()
                if quad < quads:
                    # All that is read is on its way at once, 16 bytes a thread beside its neighbours'.
                    for share in T.unroll(splits):
                        for lane in T.vectorized(QUAD):
                            total[share, lane] = partial[share, row, vector, at + lane]
                    for lane in T.vectorized(QUAD):
                        if epilogue == "bias":
                            added[lane] = T.cast(bias[vector, at + lane], F32)
                        if epilogue == "residual":
                            added[lane] = T.cast(residual[row, vector, at + lane], F32)
                    for later in T.unroll(splits - 1):
                        for lane in T.vectorized(QUAD):
                            total[0, lane] += total[later + 1, lane]
                    for lane in T.vectorized(QUAD):
                        if epilogue != "none":
                            total[0, lane] += added[lane]
                        output[row, vector, at + lane] = T.cast(total[0, lane], out_tile)

    base = definition(function, dtype, output_dtype, epilogue)
    shares = {"partial": Tensor((splits, "m", "n"), "read_write", "workspace")} if splits > 1 else {}
    return replace(
        base,
        operands={**base.operands, **shares},
        # Slices of all tiles are counted in 32 bits.
        conditions=(
            Condition(
                ceil_div("m", block_m) * ceil_div("n", columns) * ceil_div("k", BLOCK_K), Domain(max=2**30 // splits)
            ),
        ),
        constants={"splits": splits, "multiprocessors": MULTIPROCESSORS},
        derived={"vectors_of_row": part("n", lanes)},
        # Every index is checked above or by the tensor maps; the compiler's own checks would repeat that.
        pass_configs={"tl.disable_safe_memory_legalize": True},
    )
