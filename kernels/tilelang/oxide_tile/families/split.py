"""A product whose k is cut into ranges, one for each block of a cluster, which add up the sums of a tile together.

A tile has 64 weight rows and `block_m` tokens. Every block has a part of its rows to finish: it is sent that part of
the others' sums, and adds them up in the order of k.
"""

import tilelang.language as T

from oxide_tile.families.common import I32

# Rows of weights that tensor cores take at a time.
ROWS = 64
# Elements of a result that one thread stores.
QUAD = 4
# Between tokens in shared memory, so that a warp's sums lie in different banks.
PAD = 4
# Number of a named barrier; the compiler uses 3.
ALL_CONSUMERS = 1


@T.macro
def range_of(block, k, block_k, splits):
    """The column of a block's tile, which range of k is its own, that range's first slice, and how many it has."""
    column = T.alloc_var(I32, init=block // splits)
    share = T.alloc_var(I32, init=block % splits)
    # Ranges are as equal as whole slices allow.
    slices = T.alloc_var(I32, init=T.ceildiv(k, block_k))
    first = T.alloc_var(I32, init=share * slices // splits)
    count = T.alloc_var(I32, init=(share + 1) * slices // splits - first)
    return column, share, first, count


@T.macro
def share_out(sum_, sums, parts, share, splits, halves, block_m):
    """Bring the sums to shared memory in the parts that the cluster's blocks finish, this block's own to `parts`.

    Of two halves each part has as many rows of either, the first half's first.
    """
    rows, each = ROWS // halves, ROWS // halves // splits
    for i, j in T.Parallel(ROWS, block_m):
        sums[i % rows // each, j, i // rows * each + i % each] = sum_[i, j]
    if splits > 1:
        # This block's own part needs no journey.
        for i, j in T.Parallel(ROWS, block_m):
            if i % rows // each == share:
                parts[share, j, i // rows * each + i % each] = sum_[i, j]
        T.fence_proxy_async()


@T.macro
def exchange(sums, parts, arrived, share, splits, block_m):
    """Send every block of the cluster its part of this one's sums, and wait for theirs."""
    for other in T.unroll(splits):
        if other != share:
            T.copy_cluster(
                sums[other, 0:block_m, 0 : ROWS // splits + PAD],
                parts[share, 0:block_m, 0 : ROWS // splits + PAD],
                dst_block=other,
                remote_barrier=arrived[0],
            )
    T.barrier_wait(arrived[0], 0)


@T.macro
def add_up(total, parts, token, at, splits):
    """The ranges of k of four rows of this block's part, in their order."""
    for lane in T.vectorized(QUAD):
        total[lane] = parts[0, token, at + lane]
    for later in T.unroll(splits - 1):
        for lane in T.vectorized(QUAD):
            total[lane] += parts[later + 1, token, at + lane]


def goes_early(block_m: int, splits: int) -> bool:
    """Whether a block lets the others of its cluster end before it stores.

    Not with 64 tokens in clusters of 8: with half as many again as fit the machine, that took 49 us and not 45. Of 128
    tokens all clusters fit: down of 128 rows takes 13.8 us and not 14.6.
    """
    return (block_m, splits) != (64, 8)


@T.macro
def let_go(block_m, splits):
    """Say, if it is time, that nothing more is sent to this block, so that for all it needs the others may end."""
    if goes_early(block_m, splits):
        T.sync_warp()
        T.cluster_arrive_relaxed()


@T.macro
def end_together(block_m, splits):
    """End a block of a cluster, whose memory stays until what it sent has left it."""
    T.sync_warp()
    if goes_early(block_m, splits):
        T.cluster_wait()
    else:
        T.cluster_sync()
