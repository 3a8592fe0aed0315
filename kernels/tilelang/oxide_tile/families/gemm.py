"""Matrix products of few rows with fused epilogues: `gemm.dense`, also with `activation.swiglu` of its result.

`output[m, n] = input[m, k] . weight[n, k]^T` for few rows; `prefill_gemm` has the products of many. The operands are
swapped, so that weights fill the 64 rows that tensor cores need and a handful of tokens costs no padding. One warp
loads slices of k into a ring of shared memory, weights as soon as the block is placed, before the kernel ahead has
ended; a warpgroup multiplies. Blocks are small enough for two or more to share a multiprocessor, so that the next
kernel's weights are on their way while this one ends.

Where that makes too few blocks to keep the memory busy, k is cut into ranges, one for each block of a cluster. Every
block of the cluster adds up the sums of its part of the tile, in the order of k.

m, n and k are symbolic. Every element of `output` is summed over k in an order that does not depend on m.
"""

from dataclasses import replace
from functools import partial

import tilelang.language as T

from oxide_tile.definition import UNLIMITED, Definition, DefinitionError, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families.common import F32, I32, TILE_DTYPES, part, vector_lanes
from oxide_tile.families.ring import WARP, WARPGROUP, fence, fill_unrolled, multiply_slice, release
from oxide_tile.families.split import (
    ALL_CONSUMERS,
    PAD,
    QUAD,
    ROWS,
    end_together,
    exchange,
    let_go,
    range_of,
    share_out,
)

EPILOGUES = ("none", "bias", "residual", "swiglu")
# Elements of a row that lie together in a shared tile: 128 bytes, as wide as the swizzle.
SLAB = 64


def dense_small(
    dtype: str,
    output_dtype: str,
    epilogue: str,
    block_m: int,
    block_k: int,
    stages: int,
    splits: int,
) -> Definition:
    """Tiles of 64 weight rows, or 32 of a gate and their 32 of up, by block_m tokens; k in `splits` ranges."""
    check_epilogue(epilogue)
    gated = epilogue == "swiglu"
    if gated and splits > 1:
        raise DefinitionError("a gate cannot be applied to parts of a sum")
    tile, out_tile = TILE_DTYPES[dtype], TILE_DTYPES[output_dtype]
    # Results of a tile, of them those that this block finishes, and the rows that its sums have in shared memory.
    columns = ROWS // 2 if gated else ROWS
    width = columns // splits
    rows_of_part = ROWS // splits
    units = block_m * width // QUAD
    turns = -(-units // WARPGROUP)
    added = epilogue in ("bias", "residual")
    over_ring = lies_over_ring(block_m, splits)
    m, n, k, quads = T.dynamic("m"), T.dynamic("n"), T.dynamic("k"), T.dynamic("quads_of_row")

    @T.macro
    def load_weights(weight, weights, full, column, stage, at):
        for slab in T.unroll(block_k // SLAB):
            start, end, within = at + slab * SLAB, at + (slab + 1) * SLAB, slab * SLAB
            T.tma_copy(
                weight[column * columns : (column + 1) * columns, start:end],
                weights[stage, 0:columns, within : within + SLAB],
                barrier=full[stage],
            )
            if gated:
                T.tma_copy(
                    weight[n + column * columns : n + (column + 1) * columns, start:end],
                    weights[stage, columns:ROWS, within : within + SLAB],
                    barrier=full[stage],
                )

    @T.macro
    def finish(parts, extra, output, row, at):
        """Add up the ranges of k of this block's part of the tile, and store it."""
        for turn in T.unroll(turns):
            unit = turn * WARPGROUP + T.get_thread_binding()
            token, quad = unit // (width // QUAD), unit % (width // QUAD)
            total = T.alloc_local((QUAD,), F32)
            if unit < units and row * block_m + token < m and at + quad < quads:
                for lane in T.vectorized(QUAD):
                    total[lane] = parts[0, token, quad * QUAD + lane]
                if gated:
                    for lane in T.unroll(QUAD):
                        total[lane] = silu(total[lane]) * parts[0, token, columns + quad * QUAD + lane]
                for later in T.unroll(splits - 1):
                    for lane in T.vectorized(QUAD):
                        total[lane] += parts[later + 1, token, quad * QUAD + lane]
                for lane in T.vectorized(QUAD):
                    if added:
                        total[lane] += extra[turn, lane]
                    output[row * block_m + token, at + quad, lane] = T.cast(total[lane], out_tile)

    @T.prim_func
    def function(
        input: T.Tensor((m, k), tile),
        weight: T.Tensor((n * 2 if gated else n, k), tile),
        bias: T.Tensor((quads, QUAD), tile),
        residual: T.Tensor((m, quads, QUAD), out_tile),
        output: T.Tensor((m, quads, QUAD), out_tile),
    ):
        with T.Kernel(
            T.ceildiv(n, columns) * splits, T.ceildiv(m, block_m), threads=WARPGROUP + WARP, cluster_dims=splits
        ) as (block, row):
            weights = T.alloc_shared((stages, ROWS, block_k), tile)
            inputs = T.alloc_shared((stages, block_m, block_k), tile)
            sums = T.alloc_shared((splits, block_m, rows_of_part + PAD), F32)
            parts = T.alloc_shared((splits, block_m, rows_of_part + PAD), F32) if splits > 1 else sums
            full, free = T.alloc_barrier([1] * stages), T.alloc_barrier([1] * stages)
            if splits > 1:
                arrived = T.alloc_cluster_barrier([splits - 1])
            sum_ = T.alloc_fragment((ROWS, block_m), F32)
            thread = T.get_thread_binding()
            T.pdl_trigger()
            column, share, first, count = range_of(block, k, block_k, splits)
            at = T.alloc_var(I32, init=(column * columns + share * width) // QUAD)
            extra = T.alloc_local((turns, QUAD), F32)
            if thread >= WARPGROUP:
                fill_unrolled(
                    partial(load_weights, weight, weights, full, column), input, inputs, full, free, row, first, count,
                    block_m, block_k, stages, WARPGROUP,
                )  # fmt: skip
                if over_ring:
                    T.sync_warp()
                    T.cluster_arrive_relaxed()
                    T.cluster_wait()
            else:
                if epilogue == "residual":
                    T.pdl_sync()
                if added:
                    for turn in T.unroll(turns):
                        unit = turn * WARPGROUP + thread
                        token, quad = unit // (width // QUAD), unit % (width // QUAD)
                        if unit < units and row * block_m + token < m and at + quad < quads:
                            for lane in T.vectorized(QUAD):
                                if epilogue == "bias":
                                    extra[turn, lane] = T.cast(bias[at + quad, lane], F32)
                                else:
                                    extra[turn, lane] = T.cast(residual[row * block_m + token, at + quad, lane], F32)
                multiply(inputs, weights, full, free, sum_, count, block_m, block_k, stages)
                if over_ring:
                    # No product reads this block's ring any more.
                    T.sync_warp()
                    T.cluster_arrive_relaxed()
                    T.sync_threads(ALL_CONSUMERS, WARPGROUP)
                share_out(sum_, sums, parts, share, splits, 1, block_m)
                T.sync_threads(ALL_CONSUMERS, WARPGROUP)
                if over_ring:
                    # Nor those of the others, to which sums go.
                    T.cluster_wait()
                if splits > 1:
                    exchange(sums, parts, arrived, share, splits, block_m)
            if splits > 1:
                let_go(block_m, splits)
            if thread < WARPGROUP:
                finish(parts, extra, output, row, at)
            if splits > 1:
                end_together(block_m, splits)

    return replace(
        definition(function, dtype, output_dtype, epilogue),
        constants={"splits": splits},
        derived={"quads_of_row": part("n", QUAD)},
        # Every index is checked above or by the tensor maps, and every barrier set by hand.
        pass_configs={
            "tl.disable_safe_memory_legalize": True,
            "tl.disable_thread_storage_sync": True,
            "tl.enable_aggressive_shared_memory_merge": over_ring,
        },
    )


@T.macro
def multiply(inputs, weights, full, free, sum_, count, block_m, block_k, stages):
    """The sums of this block's range of k, with the products of one slice in flight while the next begin."""
    if count == 0:
        T.clear(sum_)
    # Stages are unrolled: where a place in the ring is known, its descriptors are no work for threads. Turns are not,
    # or the compiler loses sight of what is in flight, and waits for every product.
    for turn in T.unroll(T.ceildiv(count, stages), unroll_factor=1):
        for stage in T.unroll(stages):
            step = turn * stages + stage
            if step < count:
                T.barrier_wait(full[stage], turn % 2)
                multiply_slice(weights, inputs, sum_, ROWS, block_m, block_k, stage, step == 0)
                if step > 0:
                    T.wait_wgmma(1)
                    release(free, (stage + stages - 1) % stages)
    T.wait_wgmma(0)
    fence((sum_,), ROWS * block_m // WARPGROUP)


def lies_over_ring(block_m: int, splits: int) -> bool:
    """Whether sums and parts have the ring's place, so that all of a multiprocessor's memory can be ring.

    A cluster then meets once more, when its products are done. Down of 128 rows takes 1.6 us less in 8 stages than in
    5, for which there is room beside the sums.
    """
    return block_m == 128 and splits > 1


def silu(gate):
    """`gate * sigmoid(gate)`; exp2 of a scaled argument and the quick division are an instruction or two each."""
    return T.call_extern(F32, "__fdividef", gate, 1.0 + T.exp2(gate * -1.4426950408889634))


def check_epilogue(epilogue: str) -> None:
    """Refuse a variant that no kernel has."""
    if epilogue not in EPILOGUES:
        raise DefinitionError(f"epilogue {epilogue} is none of {', '.join(EPILOGUES)}")


def definition(function: object, dtype: str, output_dtype: str, epilogue: str) -> Definition:
    """What all schedules have in common. Tensor maps need rows that start at multiples of 16 bytes."""
    properties = {"input": dtype, "weight": dtype, "output": output_dtype}
    gated = epilogue == "swiglu"
    if gated:
        properties["activation"] = "swiglu"
    else:
        properties["bias"] = dtype if epilogue == "bias" else "absent"
        properties["residual"] = "present" if epilogue == "residual" else "absent"
    lanes = vector_lanes(dtype)
    return Definition(
        contract="gemm.dense",
        function=function,
        properties=properties,
        dimensions={"m": Domain(), "n": Domain(lanes, UNLIMITED // 2, lanes), "k": Domain(lanes, UNLIMITED, lanes)},
        operands={
            "input": Tensor(("m", "k")),
            "weight": Tensor((Name("n") * 2 if gated else "n", "k")),
            "bias": Tensor(("n",)),
            "residual": Tensor(("m", "n")),
            "output": Tensor(("m", "n"), "write", same_as="residual" if epilogue == "residual" else None),
        },
    )
