"""One query row per sequence against keys in pages: `attention.paged_decode`.

A block attends with all query heads of one key/value head, padded to the tensor cores' rows, over a share of the
sequence's pages. The shares depend on the sequence's own length only, so a sequence gets the same bits in any batch.

One warp copies pages into a ring of shared memory. Each of four others attends with 16 keys of every page, and keeps a
maximum, a total and a weighted sum of its own, so that warps wait for pages but never for each other; what they have
at the end is merged in shared memory.

Blocks that share a sequence are either a cluster, each of which finishes its own columns of the result from what the
others send it, or as many as the request asks for, whose results a second kernel merges.
"""

import tilelang.language as T
from tilelang.layout import make_swizzled_layout

from oxide_tile.definition import Definition, DefinitionError, Domain, Tensor
from oxide_tile.families import attention
from oxide_tile.families.attention import LOG2_E, LOWEST, check_tables
from oxide_tile.families.common import DTYPE_BYTES, F32, I32, PAGE_SIZE, TILE_DTYPES, U32, overlap_predecessor

SPLITS = ("split", "whole")
WARP = 32
# A tensor core's tile: 16 rows of queries, 16 of what is summed over, 8 columns of results. A warp has 16 keys.
ROWS, STEP, COLUMNS = 16, 16, 8
WARPS = PAGE_SIZE // STEP
CONSUMERS = WARPS * WARP
THREADS = CONSUMERS + WARP
# Elements of a row that lie together in a shared tile: 128 bytes, as wide as the swizzle.
SLICE = 64
# Number of the barrier of the four warps that attend.
ALL_CONSUMERS = 1
# Blocks that a cluster may have.
CLUSTERS = (1, 2, 4, 8)
# Elements that a thread loads at once; also, of a tensor core's tile of 16 by 16, those of one lane.
LANES = 8
# Threads that merge the shares of one row, and the elements that each loads at once.
MERGE_THREADS, MERGE_LANES = 256, 4
# The warps have their parts by hand, and no barrier that all of them could meet at. Every index is checked or follows
# from one that is; the tensor maps hold for pages.
PASS_CONFIGS = {
    "tl.disable_warp_specialized": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_safe_memory_legalize": True,
}


def paged_decode(dtype: str, head_dim: int, split: str, rows: int, ahead: int, blocks: int, cluster: int) -> Definition:
    """With `split` "split" the pages are shared among `splits` blocks, whose results a second kernel merges.

    Otherwise `cluster` blocks share them. `rows` are the query heads that a block has room for, `ahead` the bytes of
    keys, and as many of values, that are on their way to it, `blocks` how many blocks should fit a multiprocessor.
    """
    if split not in SPLITS:
        raise DefinitionError(f"split {split} is none of {', '.join(SPLITS)}")
    if cluster not in CLUSTERS or (split == "split" and cluster > 1):
        raise DefinitionError(f"pages with split {split} cannot be shared by a cluster of {cluster} blocks")
    if rows != ROWS:
        raise DefinitionError(f"a block has room for {ROWS} query heads, not {rows}")
    stages = ahead // (PAGE_SIZE * head_dim * DTYPE_BYTES[dtype])
    if stages * PAGE_SIZE * DTYPE_BYTES[dtype] < WARPS * ROWS * DTYPE_BYTES["f32"]:
        raise DefinitionError(f"{ahead} bytes of keys leave no room for what the warps have at the end")
    tile = TILE_DTYPES[dtype]
    splits_pages = split == "split"
    batch, num_pages, max_pages = T.dynamic("batch"), T.dynamic("num_pages"), T.dynamic("max_pages")
    num_q_heads, num_kv_heads = T.dynamic("num_q_heads"), T.dynamic("num_kv_heads")
    splits = T.dynamic("splits") if splits_pages else cluster
    # Columns of the result that a block of a cluster finishes.
    width = head_dim // cluster

    @T.prim_func
    def function(
        q: T.Tensor((batch, num_q_heads, head_dim), tile),
        k_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim), tile),
        v_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim), tile),
        block_table: T.Tensor((batch, max_pages), I32),
        kv_len: T.Tensor((batch,), I32),
        partial_output: T.Tensor((batch, num_q_heads, splits, head_dim), F32),
        partial_lse: T.Tensor((batch, num_q_heads, splits), F32),
        output: T.Tensor((batch, num_q_heads, head_dim), tile),
        status: T.Tensor((1,), I32),
        group_size: T.int32,
        scale: T.float32,
    ):
        with T.Kernel(splits, num_kv_heads, batch, threads=THREADS, cluster_dims=cluster) as (share, kv_head, sequence):
            q_tile = T.alloc_shared((ROWS, head_dim), tile)
            k_tiles = T.alloc_shared((stages, PAGE_SIZE, head_dim), tile)
            v_tiles = T.alloc_shared((stages, PAGE_SIZE, head_dim), tile)
            # What the warps have at the end takes the place of the keys.
            sums = T.view(k_tiles, (stages * PAGE_SIZE // 2, head_dim), F32)
            peaks = T.alloc_shared((WARPS, ROWS), F32)
            totals = T.alloc_shared((WARPS, ROWS), F32)
            if cluster > 1:
                # Of every block a piece of each row: some columns of its sum, its maximum and its total.
                sent = T.alloc_shared((cluster, ROWS, width + MERGE_LANES), F32)
                received = T.alloc_shared((cluster, ROWS, width + MERGE_LANES), F32)
                arrived = T.alloc_cluster_barrier([cluster - 1])
            k_full = T.alloc_barrier([1] * stages)
            v_full = T.alloc_barrier([1] * stages)
            k_free = T.alloc_barrier([WARPS] * stages)
            v_free = T.alloc_barrier([WARPS] * stages)
            T.annotate_layout({tiles: make_swizzled_layout(tiles) for tiles in (q_tile, k_tiles, v_tiles)})
            T.annotate_min_blocks_per_sm(blocks)
            thread = T.get_thread_binding()

            overlap_predecessor()
            # Variables, because the compiler writes other expressions out at every use.
            length = T.alloc_var(I32, init=kv_len[sequence])
            pages = T.alloc_var(I32, init=T.max(T.min(T.ceildiv(length, PAGE_SIZE), max_pages), 0))
            pages_of_share = T.alloc_var(I32, init=T.truncdiv(pages + splits - 1, splits))
            first = T.alloc_var(I32, init=share * pages_of_share)
            count = T.alloc_var(I32, init=T.max(T.min(pages_of_share, pages - first), 0))
            if thread >= CONSUMERS:
                keys, values = (k_pages, k_tiles, k_full, k_free), (v_pages, v_tiles, v_full, v_free)
                load_pages(keys, values, block_table, sequence, kv_head, first, count, stages)
            else:
                queries = T.alloc_local((head_dim // STEP, LANES), tile)
                score = T.alloc_local((LANES,), F32)
                weight = T.alloc_local((LANES,), tile)
                sum_ = T.alloc_local((head_dim // COLUMNS, 4), F32)
                highest = T.alloc_local((2,), F32)
                total = T.alloc_local((2,), F32)
                if count > 0 or not splits_pages:
                    load_queries(q, q_tile, sequence, kv_head, group_size, head_dim, tile)
                    T.sync_threads(ALL_CONSUMERS, CONSUMERS)
                    read_queries(q_tile, queries, head_dim)
                if kv_head == 0 and share == 0:
                    # While the first pages are on their way.
                    check_tables(status, block_table, sequence, length, max_pages, num_pages, CONSUMERS)
                if count > 0 or not splits_pages:
                    begin(sum_, highest, total, head_dim)
                    for step in T.serial(count):
                        stage = step % stages
                        left = T.alloc_var(I32, init=length - (first + step) * PAGE_SIZE)
                        T.barrier_wait(k_full[stage], step // stages % 2)
                        multiply_keys(queries, k_tiles, score, stage, head_dim)
                        release(k_free, stage)
                        soften(score, weight, sum_, highest, total, left, scale, head_dim, tile)
                        T.barrier_wait(v_full[stage], step // stages % 2)
                        add_values(weight, v_tiles, sum_, stage, left, head_dim)
                        release(v_free, stage)
                    # Every page has arrived and every warp has read its keys, so their place is free for good.
                    T.sync_threads(ALL_CONSUMERS, CONSUMERS)
                    put_down(sum_, highest, total, sums, peaks, totals, head_dim)
                    T.sync_threads(ALL_CONSUMERS, CONSUMERS)
                    for turn in T.unroll(ROWS * head_dim // (CONSUMERS * MERGE_LANES)):
                        at = turn * CONSUMERS + thread
                        row = at // (head_dim // MERGE_LANES)
                        column = at % (head_dim // MERGE_LANES) * MERGE_LANES
                        query_head = T.alloc_var(I32, init=kv_head * group_size + row)
                        value = T.alloc_local((MERGE_LANES,), F32)
                        ends = T.alloc_local((2,), F32)
                        if row < group_size:
                            merge_warps(value, ends, sums, peaks, totals, row, column)
                            if cluster > 1:
                                if column // width == share:
                                    # This block's own columns need no journey.
                                    put_piece(value, ends, received, share, row, column % width, width)
                                else:
                                    put_piece(value, ends, sent, column // width, row, column % width, width)
                            elif splits_pages:
                                for j in T.vectorized(MERGE_LANES):
                                    partial_output[sequence, query_head, share, column + j] = value[j] / ends[1]
                                if column == 0:
                                    partial_lse[sequence, query_head, share] = T.log2(ends[1]) + ends[0]
                            else:
                                for j in T.vectorized(MERGE_LANES):
                                    output[sequence, query_head, column + j] = T.cast(
                                        T.if_then_else(count > 0, value[j] / ends[1], 0.0), tile
                                    )
                    if cluster > 1:
                        exchange(sent, received, arrived, share, cluster)
            if cluster > 1:
                # Nothing more is sent to this block, so for all it needs the others may end.
                T.sync_warp()
                T.cluster_arrive()
                if thread < CONSUMERS:
                    finish(output, received, sequence, kv_head, group_size, share, width, pages)
                # A block's memory stays until what it sent has left it.
                T.sync_warp()
                T.cluster_wait()
        if splits_pages:
            with T.Kernel(num_q_heads, batch, threads=MERGE_THREADS) as (head, sequence):
                merge(partial_output, partial_lse, output, kv_len, head, sequence, splits, max_pages, head_dim)

    return Definition(
        contract="attention.paged_decode",
        function=function,
        properties=attention.properties(dtype),
        dimensions={
            **attention.dimensions(head_dim),
            **({"splits": Domain(max=256)} if splits_pages else {}),
        },
        conditions=attention.conditions(rows),
        derived={"group_size": attention.GROUP_SIZE},
        operands={
            **attention.operands("batch", head_dim),
            "partial_output": Tensor(("batch", "num_q_heads", "splits", head_dim), "read_write", "workspace"),
            "partial_lse": Tensor(("batch", "num_q_heads", "splits"), "read_write", "workspace"),
        },
        attributes={"scale": "f32"},
        constants={
            "page_size": PAGE_SIZE,
            "head_dim": head_dim,
            **({} if splits_pages else {"splits": cluster}),
        },
        pass_configs=PASS_CONFIGS,
    )


@T.macro
def load_pages(keys, values, block_table, sequence, kv_head, first, count, stages):
    """Copy the keys and the values of one page after the other, each into its stage once that is free again.

    `keys` and `values` are a pool, the stages, and barriers that say of each whether it is full and whether it is free.
    """
    lane = T.get_thread_binding() - CONSUMERS
    entry = T.alloc_var(I32, init=0)
    for step in T.serial(count):
        # Every lane has a page of the next 32, so that the table is not waited for at each.
        if step % WARP == 0:
            entry = block_table[sequence, first + T.min(step + lane, count - 1)]
        page = T.alloc_var(I32, init=T.shfl_sync(entry, step % WARP))
        fill(*keys, page, kv_head, step, stages)
        fill(*values, page, kv_head, step, stages)


@T.macro
def fill(pool, tiles, full, free, page, kv_head, step, stages):
    """Begin the copy of a page; a page that is not in the pool is zeros."""
    stage = step % stages
    T.barrier_wait(free[stage], step // stages % 2 ^ 1)
    for slice_ in T.unroll(tiles.shape[2] // SLICE):
        T.tma_copy(
            pool[page, kv_head, 0:PAGE_SIZE, slice_ * SLICE : (slice_ + 1) * SLICE],
            tiles[stage, 0:PAGE_SIZE, slice_ * SLICE : (slice_ + 1) * SLICE],
            barrier=full[stage],
        )
    # Now every lane has seen the stage free, so none can be a lap behind when it is to be filled again; and the lane
    # that was elected to copy has said how many bytes to expect.
    T.sync_warp()
    if T.get_thread_binding() == CONSUMERS:
        T.barrier_arrive(full[stage])


@T.macro
def release(free, stage):
    """Give a stage back; one lane speaks for its warp, when all of them have read."""
    T.sync_warp()
    if T.get_thread_binding() % WARP == 0:
        T.barrier_arrive(free[stage])


@T.macro
def load_queries(q, q_tile, sequence, kv_head, group_size, head_dim, tile):
    """Copy the queries of a group, zeros after the last; neighbouring threads take neighbouring pieces of a row."""
    pieces = head_dim // LANES
    for step in T.unroll(ROWS * pieces // CONSUMERS):
        row = (step * CONSUMERS + T.get_thread_binding()) // pieces
        column = (step * CONSUMERS + T.get_thread_binding()) % pieces * LANES
        for j in T.vectorized(LANES):
            q_tile[row, column + j] = T.if_then_else(
                row < group_size, q[sequence, kv_head * group_size + row, column + j], T.cast(0, tile)
            )


@T.macro
def begin(sum_, highest, total, head_dim):
    """No key yet."""
    for i in T.unroll(head_dim // COLUMNS):
        for j in T.unroll(4):
            sum_[i, j] = 0.0
    for row in T.unroll(2):
        highest[row] = LOWEST
        total[row] = 0.0


@T.macro
def read_queries(q_tile, queries, head_dim):
    """All queries, as the tensor cores take them."""
    lane = T.get_thread_binding() % WARP
    for i in T.unroll(head_dim // STEP):
        T.ptx_ldmatrix(
            False, 4,
            T.access_ptr(q_tile[lane % ROWS, i * STEP + lane // ROWS * 8], "r", 8),
            T.access_ptr(queries[i, 0], "w", LANES),
        )  # fmt: skip


@T.macro
def multiply_keys(queries, k_tiles, score, stage, head_dim):
    """Queries times this warp's keys of a page."""
    lane = T.get_thread_binding() % WARP
    warp = T.get_thread_binding() // WARP
    keys = T.alloc_local((4,), U32)
    # Sums of two halves, because a product waits for the one before it.
    part = T.alloc_local((2, LANES), F32)
    for j in T.unroll(LANES):
        part[0, j] = 0.0
        part[1, j] = 0.0
    for i in T.unroll(head_dim // STEP):
        T.ptx_ldmatrix(
            False, 4,
            T.access_ptr(k_tiles[stage, warp * STEP + lane // 16 * 8 + lane % 8, i * STEP + lane // 8 % 2 * 8], "r", 8),
            T.access_ptr(keys[0], "w", 4),
        )  # fmt: skip
        for side in T.unroll(2):
            T.ptx_mma(
                F32, "m16n8k16", "row", "col", "bf16", "bf16", "fp32",
                queries.data, i * LANES, keys.data, side * 2, part.data, i % 2 * LANES + side * 4, T.bool(False),
            )  # fmt: skip
    for j in T.unroll(LANES):
        score[j] = part[0, j] + part[1, j]


@T.macro
def soften(score, weight, sum_, highest, total, left, scale, head_dim, tile):
    """Turn scores into weights, and fold them into this warp's maxima, totals and sums.

    A lane has two rows, `lane / 4` and 8 further, and of each four keys: two neighbours and the two 8 further. Totals
    are of a lane's own keys until the end. `left` keys of the page and of those after it are the sequence's.
    """
    lane = T.get_thread_binding() % WARP
    warp = T.get_thread_binding() // WARP
    peak = T.alloc_local((2,), F32)
    correction = T.alloc_local((2,), F32)
    for j in T.unroll(LANES):
        score[j] = T.if_then_else(
            warp * STEP + lane % 4 * 2 + j // 4 * 8 + j % 2 < left, score[j] * (scale * LOG2_E), LOWEST
        )
    for row in T.unroll(2):
        peak[row] = T.max(T.max(score[row * 2], score[row * 2 + 1]), T.max(score[row * 2 + 4], score[row * 2 + 5]))
        for distance in T.unroll(2):
            peak[row] = T.max(peak[row], T.shfl_xor(peak[row], 1 << distance))
        peak[row] = T.max(peak[row], highest[row])
        correction[row] = T.exp2(highest[row] - peak[row])
        highest[row] = peak[row]
    for j in T.unroll(LANES):
        score[j] = T.exp2(score[j] - highest[j // 2 % 2])
        weight[j] = T.cast(score[j], tile)
    for row in T.unroll(2):
        total[row] = total[row] * correction[row] + (
            (score[row * 2] + score[row * 2 + 1]) + (score[row * 2 + 4] + score[row * 2 + 5])
        )
    for i in T.unroll(head_dim // COLUMNS):
        for j in T.unroll(4):
            sum_[i, j] *= correction[j // 2]


@T.macro
def add_values(weight, v_tiles, sum_, stage, left, head_dim):
    """Add this warp's values of a page by their weights.

    Slots after the sequence's end may hold anything. Their weights are 0, but 0 times NaN is NaN, so what a lane has of
    them is cleared in its registers; the page itself is written by copies only, which need no fence between them.
    """
    lane = T.get_thread_binding() % WARP
    warp = T.get_thread_binding() // WARP
    values = T.alloc_local((4,), U32)
    # Of the two keys that a register holds, and of those of the next one, 8 further.
    kept = T.alloc_local((2,), U32)
    for j in T.unroll(2):
        key = warp * STEP + lane % 4 * 2 + j * 8
        kept[j] = T.if_then_else(
            key + 1 < left, T.uint32(0xFFFFFFFF), T.if_then_else(key < left, T.uint32(0xFFFF), T.uint32(0))
        )
    for i in T.unroll(head_dim // STEP):
        T.ptx_ldmatrix(
            True, 4,
            T.access_ptr(v_tiles[stage, warp * STEP + lane % 16, i * STEP + lane // 16 * 8], "r", 8),
            T.access_ptr(values[0], "w", 4),
        )  # fmt: skip
        for j in T.unroll(4):
            values[j] = values[j] & kept[j % 2]
        for side in T.unroll(2):
            T.ptx_mma(
                F32, "m16n8k16", "row", "col", "bf16", "bf16", "fp32",
                weight.data, 0, values.data, side * 2, sum_.data, (i * 2 + side) * 4, T.bool(False),
            )  # fmt: skip


@T.macro
def put_down(sum_, highest, total, sums, peaks, totals, head_dim):
    """Leave what a warp has for the others."""
    lane = T.get_thread_binding() % WARP
    warp = T.get_thread_binding() // WARP
    for row in T.unroll(2):
        for distance in T.unroll(2):
            total[row] += T.shfl_xor(total[row], 1 << distance)
        if lane % 4 == 0:
            peaks[warp, row * 8 + lane // 4] = highest[row]
            totals[warp, row * 8 + lane // 4] = total[row]
    for i in T.unroll(head_dim // COLUMNS):
        for row in T.unroll(2):
            for j in T.vectorized(2):
                sums[warp * ROWS + row * 8 + lane // 4, i * COLUMNS + lane % 4 * 2 + j] = sum_[i, row * 2 + j]


@T.macro
def merge_warps(value, ends, sums, peaks, totals, row, column):
    """Some elements of a row's weighted sum over all warps; of the row, its maximum and the total of its weights.

    A warp without keys has the lowest maximum, and so no weight beside one that has.
    """
    part = T.alloc_local((MERGE_LANES,), F32)
    ends[0] = peaks[0, row]
    for warp in T.unroll(WARPS - 1):
        ends[0] = T.max(ends[0], peaks[warp + 1, row])
    ends[1] = 0.0
    for j in T.unroll(MERGE_LANES):
        value[j] = 0.0
    for warp in T.unroll(WARPS):
        weight = T.alloc_var(F32, init=T.exp2(peaks[warp, row] - ends[0]))
        ends[1] += weight * totals[warp, row]
        for j in T.vectorized(MERGE_LANES):
            part[j] = sums[warp * ROWS + row, column + j]
        for j in T.unroll(MERGE_LANES):
            value[j] += weight * part[j]


@T.macro
def put_piece(value, ends, pieces, place, row, column, width):
    """Lay out some elements of a row for the block that finishes their columns; each has the row's ends beside them."""
    for j in T.vectorized(MERGE_LANES):
        pieces[place, row, column + j] = value[j]
    if column == 0:
        for j in T.vectorized(2):
            pieces[place, row, width + j] = ends[j]


@T.macro
def exchange(sent, received, arrived, share, cluster):
    """Send every other block of the cluster its columns, and wait for those of this one from all."""
    T.fence_proxy_async()
    T.sync_threads(ALL_CONSUMERS, CONSUMERS)
    for other in T.unroll(cluster):
        if other != share:
            T.copy_cluster(
                sent[other, 0:ROWS, 0 : sent.shape[2]],
                received[share, 0:ROWS, 0 : received.shape[2]],
                dst_block=other,
                remote_barrier=arrived[0],
            )
    T.barrier_wait(arrived[0], 0)


@T.macro
def finish(output, received, sequence, kv_head, group_size, share, width, pages):
    """Merge the pieces of all blocks in their order; no key gives zeros.

    A block without keys has the lowest maximum, and so no weight beside one that has.
    """
    cluster = received.shape[0]
    units = ROWS * width // MERGE_LANES
    for turn in T.unroll(-(-units // CONSUMERS)):
        unit = turn * CONSUMERS + T.get_thread_binding()
        row, column = unit // (width // MERGE_LANES), unit % (width // MERGE_LANES) * MERGE_LANES
        piece = T.alloc_local((MERGE_LANES,), F32)
        ends = T.alloc_local((cluster, 2), F32)
        value = T.alloc_local((MERGE_LANES,), F32)
        if row < group_size:
            for other in T.unroll(cluster):
                for j in T.vectorized(2):
                    ends[other, j] = received[other, row, width + j]
            highest = T.alloc_var(F32, init=ends[0, 0])
            for other in T.unroll(cluster - 1):
                highest = T.max(highest, ends[other + 1, 0])
            total = T.alloc_var(F32, init=0.0)
            for j in T.unroll(MERGE_LANES):
                value[j] = 0.0
            for other in T.unroll(cluster):
                weight = T.alloc_var(F32, init=T.exp2(ends[other, 0] - highest))
                total += weight * ends[other, 1]
                for j in T.vectorized(MERGE_LANES):
                    piece[j] = received[other, row, column + j]
                for j in T.unroll(MERGE_LANES):
                    value[j] += weight * piece[j]
            for j in T.vectorized(MERGE_LANES):
                output[sequence, kv_head * group_size + row, share * width + column + j] = T.cast(
                    T.if_then_else(pages > 0, value[j] / total, 0.0), output.dtype
                )


@T.macro
def merge(partial_output, partial_lse, output, kv_len, head, sequence, splits, max_pages, head_dim):
    """Weigh the shares of one row by their sums of exponentials; no key gives zeros.

    Teams of threads take every so many shares, a thread four elements of each, and add up what they have at the end.
    """
    team_size = head_dim // MERGE_LANES
    teams = MERGE_THREADS // team_size
    team_values = T.alloc_shared((teams, head_dim), F32)
    team_totals = T.alloc_shared((teams,), F32)
    value = T.alloc_local((MERGE_LANES,), F32)
    highest = T.alloc_var(F32, init=LOWEST)
    total = T.alloc_var(F32, init=0.0)
    thread = T.get_thread_binding()
    team, first = thread // team_size, thread % team_size * MERGE_LANES
    overlap_predecessor()
    pages = T.alloc_var(I32, init=T.max(T.min(T.ceildiv(kv_len[sequence], PAGE_SIZE), max_pages), 0))
    shares = T.alloc_var(I32, init=T.ceildiv(pages, T.max(T.ceildiv(pages, splits), 1)))
    for step in T.serial(T.ceildiv(shares, WARP)):
        share = step * WARP + thread % WARP
        if share < shares:
            highest = T.max(highest, partial_lse[sequence, head, share])
    for distance in T.unroll(WARP.bit_length() - 1):
        highest = T.max(highest, T.shfl_xor(highest, 1 << distance))
    for j in T.serial(MERGE_LANES):
        value[j] = 0.0
    for step in T.serial(T.ceildiv(shares, teams)):
        share = step * teams + team
        if share < shares:
            weight = T.alloc_var(F32, init=T.exp2(partial_lse[sequence, head, share] - highest))
            total += weight
            for j in T.vectorized(MERGE_LANES):
                value[j] += weight * partial_output[sequence, head, share, first + j]
    for j in T.vectorized(MERGE_LANES):
        team_values[team, first + j] = value[j]
    if first == 0:
        team_totals[team] = total
    T.sync_threads()
    if thread < head_dim:
        sum_ = T.alloc_var(F32, init=0.0)
        total = 0.0
        for other in T.serial(teams):
            sum_ += team_values[other, thread]
            total += team_totals[other]
        output[sequence, head, thread] = T.cast(T.if_then_else(shares > 0, sum_ / total, 0.0), output.dtype)
