"""Matrix products of some hundred rows whose k is shared by a cluster: `gemm.dense` with a residual.

`output[m, n] = input[m, k] . weight[n, k]^T + residual[m, n]`. There are too few tiles for all multiprocessors, so
every block of a cluster has a range of k of one tile. One warp loads slices of k into a ring of shared memory, weights
as soon as the block is placed, before the kernel ahead has ended; warpgroups of 64 tokens each multiply. When all are
done, every block writes its sums into the memory of the blocks that finish them, some rows each, beside their rings,
which may still be in use, and adds up what it was sent in the order of k.

m, n and k are symbolic. Every element of `output` is summed over k in an order that does not depend on m.
"""

from dataclasses import replace

import tilelang.language as T

from oxide_tile.definition import Definition, DefinitionError
from oxide_tile.families.common import F32, I32, TILE_DTYPES, part
from oxide_tile.families.gemm import definition
from oxide_tile.families.ring import BLOCK_K, WARP, WARPGROUP, load_input, load_rows, multiply_range
from oxide_tile.families.split import QUAD

# Rows of the input that a warpgroup multiplies.
ROWS = 64
# Columns that four neighbouring threads hold, two each, and rows that a warp holds.
GROUP, TILE_ROWS = 8, 16
PUT_PEER = """
__device__ __forceinline__ void put_peer(void *at, int block, int self, float first, float second) {
  if (block == self) {
    *(float2 *)at = make_float2(first, second);
    return;
  }
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((unsigned)__cvta_generic_to_shared(at)), "r"(block));
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(first), "f"(second) : "memory");
}
"""


def dense_clustered(
    dtype: str, output_dtype: str, epilogue: str, block_m: int, block_n: int, stages: int, splits: int
) -> Definition:
    """Tiles of block_m tokens by block_n weight rows; k in `splits` ranges, one for each block of a cluster."""
    if epilogue != "residual":
        raise DefinitionError(f"epilogue {epilogue} is not residual")
    rows = block_m // splits
    if block_m % ROWS or rows % TILE_ROWS or block_n % GROUP:
        raise DefinitionError(f"no tile of {block_m} by {block_n} in {splits} parts")
    tile, out_tile = TILE_DTYPES[dtype], TILE_DTYPES[output_dtype]
    consumers = block_m // ROWS
    consumer_threads = consumers * WARPGROUP
    # Rows of a part start in different banks: four of them fill all.
    stride = block_n + (GROUP if block_n % (2 * GROUP) == 0 else 0)
    quads_of_part = block_n // QUAD
    units = rows * quads_of_part
    turns = -(-units // consumer_threads)
    m, n, k, quads = T.dynamic("m"), T.dynamic("n"), T.dynamic("k"), T.dynamic("quads_of_row")

    @T.macro
    def produce(input, weight, inputs, weights, full, free, column, row, first, count):
        """As `ring.fill`, but an offset that the weights are loaded from is no variable."""
        early = T.alloc_var(I32, init=T.min(stages, count))
        for step in T.serial(early):
            load_rows(weight, weights, full, column, block_n, step, (first + step) * BLOCK_K)
        T.pdl_sync()
        for step in T.serial(count):
            stage = step % stages
            T.barrier_wait(free[stage], step // stages % 2 ^ 1)
            if step >= early:
                load_rows(weight, weights, full, column, block_n, stage, (first + step) * BLOCK_K)
            at = T.alloc_var(I32, init=(first + step) * BLOCK_K)
            load_input(input, inputs, full, stage, row, at, block_m, BLOCK_K, consumer_threads)

    @T.macro
    def send(sum_, parts, share):
        """Write every pair of sums to the block that finishes it."""
        both = T.alloc_local((2,), F32)
        for i, pair in T.Parallel(block_m, block_n // 2):
            for lane in T.vectorized(2):
                both[lane] = sum_[i, pair * 2 + lane]
            T.call_extern(
                "handle",
                "put_peer",
                T.access_ptr(parts[share, i % rows, pair * 2], "w"),
                i // rows,
                share,
                both[0],
                both[1],
            )

    @T.macro
    def finish(parts, extra, output, first_row, at):
        """Add up the ranges of k of this block's part of the tile, and store it."""
        for turn in T.unroll(turns):
            unit = turn * consumer_threads + T.get_thread_binding()
            token, quad = unit // quads_of_part, unit % quads_of_part
            total = T.alloc_local((QUAD,), F32)
            if unit < units and first_row + token < m and at + quad < quads:
                for lane in T.vectorized(QUAD):
                    total[lane] = parts[0, token, quad * QUAD + lane]
                for later in T.unroll(splits - 1):
                    for lane in T.vectorized(QUAD):
                        total[lane] += parts[later + 1, token, quad * QUAD + lane]
                for lane in T.vectorized(QUAD):
                    total[lane] += extra[turn, lane]
                    output[first_row + token, at + quad, lane] = T.cast(total[lane], out_tile)

    @T.prim_func
    def function(
        input: T.Tensor((m, k), tile),
        weight: T.Tensor((n, k), tile),
        residual: T.Tensor((m, quads, QUAD), out_tile),
        output: T.Tensor((m, quads, QUAD), out_tile),
    ):
        with T.Kernel(
            T.ceildiv(n, block_n) * splits,
            T.ceildiv(m, block_m),
            threads=consumer_threads + WARP,
            cluster_dims=splits,
            prelude=PUT_PEER,
        ) as (block, row):
            weights = T.alloc_shared((stages, block_n, BLOCK_K), tile)
            inputs = T.alloc_shared((stages, block_m, BLOCK_K), tile)
            parts = T.alloc_shared((splits, rows, stride), F32)
            full, free = T.alloc_barrier([1] * stages), T.alloc_barrier([consumers] * stages)
            sum_ = T.alloc_fragment((block_m, block_n), F32)
            extra = T.alloc_local((turns, QUAD), F32)
            thread = T.get_thread_binding()
            T.pdl_trigger()
            # Peers write to this block's memory when all have begun.
            T.cluster_arrive()
            column = T.alloc_var(I32, init=block // splits)
            share = T.alloc_var(I32, init=block % splits)
            # Ranges are as equal as whole slices allow.
            slices = T.alloc_var(I32, init=T.ceildiv(k, BLOCK_K))
            first = T.alloc_var(I32, init=T.truncdiv(share * slices, splits))
            count = T.alloc_var(I32, init=T.truncdiv((share + 1) * slices, splits) - first)
            at = T.alloc_var(I32, init=column * block_n // QUAD)
            first_row = T.alloc_var(I32, init=row * block_m + share * rows)
            if thread >= consumer_threads:
                produce(input, weight, inputs, weights, full, free, column, row, first, count)
            else:
                T.pdl_sync()
                for turn in T.unroll(turns):
                    unit = turn * consumer_threads + thread
                    token, quad = unit // quads_of_part, unit % quads_of_part
                    if unit < units and first_row + token < m and at + quad < quads:
                        for lane in T.vectorized(QUAD):
                            extra[turn, lane] = T.cast(residual[first_row + token, at + quad, lane], F32)
                multiply_range(
                    inputs, weights, full, free, sum_, count, block_m, block_n, BLOCK_K, stages,
                    block_n * ROWS // WARPGROUP,
                )  # fmt: skip
            T.sync_warp()
            T.cluster_wait()
            if thread < consumer_threads:
                send(sum_, parts, share)
            T.sync_warp()
            T.cluster_sync()
            if thread < consumer_threads:
                finish(parts, extra, output, first_row, at)

    return replace(
        definition(function, dtype, output_dtype, epilogue),
        constants={"splits": splits},
        derived={"quads_of_row": part("n", QUAD)},
        # Every index is checked by hand or by the tensor maps, and every barrier set by hand.
        pass_configs={
            "tl.disable_safe_memory_legalize": True,
            "tl.disable_thread_storage_sync": True,
            # Peers write the parts of sums while the ring is in use.
            "tl.disable_shared_memory_reuse": True,
        },
    )
