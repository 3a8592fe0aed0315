"""What a block of decode does with its pages: how they come to it, and what each of its warps makes of them."""

import tilelang.language as T

from oxide_tile.families.attention import LOG2_E, LOWEST, Keys, copy_keys
from oxide_tile.families.common import F32, I32, PAGE_SIZE, U32

WARP = 32
# A tensor core's tile: 16 rows of queries, 16 of what is summed over, 8 columns of results. A warp has 16 keys.
ROWS, STEP, COLUMNS = 16, 16, 8
# Keys of a stage, whatever the size of pages.
TILE = PAGE_SIZE
WARPS = TILE // STEP
CONSUMERS = WARPS * WARP
# Elements of a row that lie together in a shared tile: 128 bytes, as wide as the swizzle.
SLICE = 64
# Elements that a thread loads at once; also, of a tensor core's tile of 16 by 16, those of one lane.
LANES = 8


def tiles_of(length, max_pages, keys: Keys):
    """Tiles of a sequence, as far as its row of the table can hold them."""
    if not keys.paged:
        return T.ceildiv(length, TILE)
    if keys.page_size == TILE:
        return T.max(T.min(T.ceildiv(length, TILE), max_pages), 0)
    return T.max(T.min(T.ceildiv(length, TILE), T.ceildiv(max_pages, TILE // keys.page_size)), 0)


@T.macro
def load_pages(k_way, v_way, block_table, sequence, kv_head, length, first, count, tiles, stages, keys):
    """Copy the keys and the values of one page after the other, each into its stage once that is free again.

    `k_way` and `v_way` are a pool, the stages, and barriers that say of each whether it is full and whether it is free.
    """
    lane = T.get_thread_binding() - CONSUMERS
    entry = T.alloc_var(I32, init=0)
    for step in T.serial(count):
        # Every lane has a page of the next 32, so that the table is not waited for at each.
        if step % WARP == 0:
            entry = block_table[sequence, first + T.min(step + lane, count - 1)]
        page = T.alloc_var(I32, init=T.shfl_sync(entry, step % WARP))
        await_newest(first + step, tiles)
        start = T.alloc_var(I32, init=-STEP * unused_warps(length - (first + step) * TILE))
        fill(*k_way, (page,), kv_head, step, stages, keys, CONSUMERS, start)
        fill(*v_way, (page,), kv_head, step, stages, keys, CONSUMERS, start)


def unused_warps(left):
    """Warps whose keys of a page are all after the sequence's end, of which `left` keys are left.

    The copy of such a page begins so many warps' rows before its first. What is there is zeros without being read, what
    is after the end is not copied, and the keys of a warp lie so many warps' rows further on.
    """
    return T.truncdiv(T.max(TILE - left, 0), STEP)


@T.macro
def load_parts(way, first_thread, block_table, sequence, kv_head, length, max_pages, first, count, tiles, stages, keys):
    """As `load_pages`, of tiles of several pages, keys or values alone; the warp begins with thread `first_thread`."""
    lane = T.get_thread_binding() - first_thread
    entry = T.alloc_var(I32, init=0)
    parts = TILE // keys.page_size
    # Of a tile's pages those after the sequence's last are that one again: what they hold is masked.
    last = T.alloc_var(I32, init=T.max(T.min(T.ceildiv(length, keys.page_size), max_pages) - 1, 0))
    pages = T.alloc_local((parts,), I32)
    for step in T.serial(count):
        if step % (WARP // parts) == 0:
            entry = block_table[sequence, T.min((first + step) * parts + lane, last)]
        for part in T.unroll(parts):
            pages[part] = T.shfl_sync(entry, step % (WARP // parts) * parts + part)
        await_newest(first + step, tiles)
        fill(*way, tuple(pages[part] for part in range(parts)), kv_head, step, stages, keys, first_thread)


@T.macro
def await_newest(step, tiles):
    """Before the tile of a sequence's newest key, which the kernel ahead may write, see that it has ended."""
    if step == tiles - 1:
        T.pdl_sync()


@T.macro
def load_flat(k_way, v_way, kv_head, first, count, stages, keys):
    """As `load_pages`, of keys that lie one after another."""
    for step in T.serial(count):
        fill(*k_way, ((first + step) * TILE,), kv_head, step, stages, keys, CONSUMERS)
        fill(*v_way, ((first + step) * TILE,), kv_head, step, stages, keys, CONSUMERS)


@T.macro
def fill(pool, tiles, full, free, pages, kv_head, step, stages, keys, first_thread, start=0):
    """Begin the copy of a tile's pages; a page that is not in the pool is zeros, and so is what is past flat keys.

    Rows are those from `start` on.
    """
    stage = step % stages
    rows = TILE // len(pages)
    T.barrier_wait(free[stage], step // stages % 2 ^ 1)
    for part, page in enumerate(pages):
        for slice_ in T.unroll(tiles.shape[2] // SLICE):
            copy_keys(
                pool, tiles, stage, part * rows, rows, page, kv_head, slice_ * SLICE, SLICE, keys.layout, full, start
            )  # fmt: skip
    # Now every lane has seen the stage free, so none can be a lap behind when it is to be filled again; and the lane
    # that was elected to copy has said how many bytes to expect.
    T.sync_warp()
    if T.get_thread_binding() == first_thread:
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
def multiply_keys(queries, k_tiles, score, stage, place, head_dim):
    """Queries times this warp's keys of a tile, which are at its place `place` of all warps'."""
    lane = T.get_thread_binding() % WARP
    keys = T.alloc_local((4,), U32)
    # Sums of two halves, because a product waits for the one before it.
    part = T.alloc_local((2, LANES), F32)
    for j in T.unroll(LANES):
        part[0, j] = 0.0
        part[1, j] = 0.0
    for i in T.unroll(head_dim // STEP):
        T.ptx_ldmatrix(
            False, 4,
            T.access_ptr(
                k_tiles[stage, place * STEP + lane // 16 * 8 + lane % 8, i * STEP + lane // 8 % 2 * 8], "r", 8
            ),
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
    are of a lane's own keys until the end. `left` keys of the tile and of those after it are the sequence's.
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
def add_values(weight, v_tiles, sum_, stage, place, left, head_dim):
    """Add this warp's values of a tile, at its place `place`, by their weights.

    Slots after the sequence's end may hold anything. Their weights are 0, but 0 times NaN is NaN, so what a lane has of
    them is cleared in its registers; the tile itself is written by copies only, which need no fence between them.
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
            T.access_ptr(v_tiles[stage, place * STEP + lane % 16, i * STEP + lane // 16 * 8], "r", 8),
            T.access_ptr(values[0], "w", 4),
        )  # fmt: skip
        for j in T.unroll(4):
            values[j] = values[j] & kept[j % 2]
        for side in T.unroll(2):
            T.ptx_mma(
                F32, "m16n8k16", "row", "col", "bf16", "bf16", "fp32",
                weight.data, 0, values.data, side * 2, sum_.data, (i * 2 + side) * 4, T.bool(False),
            )  # fmt: skip
