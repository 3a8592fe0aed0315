"""The ring of shared memory through which a warp feeds the warpgroups of its block slices of k to multiply.

The ring has `stages` places, each for a slice of the input and of the weights. `full[stage]` is met when all of a slice
has come, and `free[stage]` when every warpgroup has multiplied with it. Slices take the places in turn, those of a
block's next tile after those of the one before.

A `load_weights` that a macro here is given takes a stage and an offset into k, and begins to load the weights of that
slice. `leader` is the first thread of the loading warp.
"""

from collections.abc import Iterable

import tilelang.language as T

from oxide_tile.families.common import I32

WARP, WARPGROUP = 32, 128
# Elements of k that a slice has where nothing else is said: 128 bytes, as wide as the swizzle.
BLOCK_K = 64
FULL_ROW = T.GemmWarpPolicy.FullRow


@T.macro
def load_rows(weight, weights, full, column, columns, stage, at):
    """Begin to load a slice of the column-th `columns` rows of a weight."""
    T.tma_copy(
        weight[column * columns : (column + 1) * columns, at : at + BLOCK_K],
        weights[stage, 0:columns, 0:BLOCK_K],
        barrier=full[stage],
    )


@T.macro
def load_input(input, inputs, full, stage, row, at, block_m, block_k, leader):
    """Begin to load a slice of a tile's rows. All of a stage is on its way then."""
    T.tma_copy(
        input[row * block_m : (row + 1) * block_m, at : at + block_k],
        inputs[stage, 0:block_m, 0:block_k],
        barrier=full[stage],
    )
    # The thread that was elected to load has said how many bytes to expect.
    T.sync_warp()
    if T.get_thread_binding() == leader:
        T.barrier_arrive(full[stage])


@T.macro
def fill(
    load_weights, input, inputs, full, free, row, first, round_, count, block_m, block_k, stages, leader, beside=None
):  # fmt: skip
    """Load `count` slices of a tile, from the `first` of k on; `round_` tiles went before it, 0 if a block has but one.

    The weights that fill the ring for the first time come before the predecessor has ended. `beside` is done once for
    each slice, with its number.
    """
    early = T.alloc_var(I32, init=T.if_then_else(round_ == 0, T.min(stages, count), 0))
    for step in T.serial(early):
        load_weights(step, (first + step) * block_k)
    if round_ == 0:
        T.pdl_sync()
    for step in T.serial(count):
        # Variables where they are not short, because the compiler writes other expressions out at every use.
        turn = step if isinstance(round_, int) else T.alloc_var(I32, init=round_ * count + step)
        at = step * block_k if isinstance(first, int) else T.alloc_var(I32, init=(first + step) * block_k)
        stage = turn % stages
        T.barrier_wait(free[stage], turn // stages % 2 ^ 1)
        if step >= early:
            load_weights(stage, at)
        load_input(input, inputs, full, stage, row, at, block_m, block_k, leader)
        if beside is not None:
            beside(step)


@T.macro
def fill_unrolled(
    load_weights, input, inputs, full, free, row, first, count, block_m, block_k, stages, leader
):  # fmt: skip
    """As `fill`, for a block's only tile and few slices: in its first turn the ring is waited for in no place."""
    for stage in T.unroll(stages):
        if stage < count:
            load_weights(stage, (first + stage) * block_k)
    T.pdl_sync()
    for stage in T.unroll(stages):
        if stage < count:
            load_input(input, inputs, full, stage, row, (first + stage) * block_k, block_m, block_k, leader)
    for turn in T.unroll(T.truncdiv(count - 1, stages), unroll_factor=1):
        for stage in T.unroll(stages):
            step = (turn + 1) * stages + stage
            if step < count:
                T.barrier_wait(free[stage], turn % 2)
                load_weights(stage, (first + step) * block_k)
                load_input(input, inputs, full, stage, row, (first + step) * block_k, block_m, block_k, leader)


@T.macro
def multiply_slice(left, right, sum_, rows, columns, block_k, stage, clear):
    """Begin to add the products of a slice to `sum_[rows, columns]`, or with `clear` to take them for it."""
    T.wgmma_gemm(
        left[stage, 0:rows, 0:block_k],
        right[stage, 0:columns, 0:block_k],
        sum_,
        transpose_B=True,
        policy=FULL_ROW,
        clear_accum=clear,
    )


@T.macro
def release(free, stage, cluster=1):
    """Give a stage back to the producers; one thread speaks for the warpgroup, whose products end together."""
    if T.get_thread_binding() % WARPGROUP == 0:
        if cluster == 1:
            T.barrier_arrive(free[stage])
        else:
            for peer in T.unroll(cluster):
                T.mbarrier_arrive(free[stage], peer)


@T.macro
def multiply_tile(multiply, sums, registers, full, free, round_, count, stages, cluster=1):
    """The `sums` of a tile, of so many `registers` each, with the products of one slice in flight while the next begin.

    `multiply` takes a stage and whether the sums begin anew, and begins a product for each. There is a slice at least.
    """
    start = T.alloc_var(I32, init=round_ * count)
    T.barrier_wait(full[start % stages], start // stages % 2)
    multiply(start % stages, True)
    for step in T.serial(count - 1):
        before = T.alloc_var(I32, init=start + step)
        T.barrier_wait(full[(before + 1) % stages], (before + 1) // stages % 2)
        multiply((before + 1) % stages, False)
        T.wait_wgmma(len(sums))
        release(free, before % stages, cluster)
    T.wait_wgmma(0)
    fence(sums, registers)
    release(free, (start + count - 1) % stages, cluster)


@T.macro
def multiply_range(left, right, full, free, sum_, count, rows, columns, block_k, stages, registers):
    """The sums of a block's only tile and its range of k, which may be empty, with products in flight likewise."""
    if count == 0:
        T.clear(sum_)
    for step in T.serial(count):
        stage = step % stages
        T.barrier_wait(full[stage], step // stages % 2)
        multiply_slice(left, right, sum_, rows, columns, block_k, stage, step == 0)
        if step > 0:
            T.wait_wgmma(1)
            release(free, (step - 1) % stages)
    T.wait_wgmma(0)
    fence((sum_,), registers)


def fence(sums: Iterable[object], registers: int) -> None:
    """Let no use of the sums, of so many registers each, come before the products have ended."""
    for sum_ in sums:
        T.warpgroup_fence_operand(sum_, num_regs=registers)
