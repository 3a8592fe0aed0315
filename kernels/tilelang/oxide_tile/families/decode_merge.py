"""How the warps of a decode's block, the blocks of a cluster, and the blocks of a split put together what they have."""

import tilelang.language as T

from oxide_tile.families.attention import LOWEST
from oxide_tile.families.common import F32, I32, overlap_predecessor
from oxide_tile.families.decode_parts import COLUMNS, CONSUMERS, ROWS, WARP, WARPS, tiles_of

# Number of the barrier of the four warps that attend.
ALL_CONSUMERS = 1
# Threads that merge the shares of one row, and the elements that each loads at once.
MERGE_THREADS, MERGE_LANES = 256, 4
# Writes four numbers to a place of another block's shared memory.
PUT_PEER = """
__device__ __forceinline__ void put_peer(void *at, int block, float a, float b, float c, float d) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((unsigned)__cvta_generic_to_shared(at)), "r"(block));
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}
"""


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
def put_piece(value, ends, pieces, share, row, column, width):
    """Write some elements of a row to the block that finishes their columns; each has the row's ends beside them."""
    other = column // width
    T.call_extern(
        "handle", "put_peer", T.access_ptr(pieces[share, row, column % width], "w"), other,
        value[0], value[1], value[2], value[3],
    )  # fmt: skip
    if column % width == 0:
        T.call_extern(
            "handle", "put_peer", T.access_ptr(pieces[share, row, width], "w"), other,
            ends[0], ends[1], T.float32(0), T.float32(0),
        )  # fmt: skip


@T.macro
def finish(output, pieces, sequence, kv_head, group_size, share, width, tiles):
    """Merge the pieces of all blocks in their order; no key gives zeros.

    A block without keys has the lowest maximum, and so no weight beside one that has.
    """
    cluster = pieces.shape[0]
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
                    ends[other, j] = pieces[other, row, width + j]
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
                    piece[j] = pieces[other, row, column + j]
                for j in T.unroll(MERGE_LANES):
                    value[j] += weight * piece[j]
            for j in T.vectorized(MERGE_LANES):
                output[sequence, kv_head * group_size + row, share * width + column + j] = T.cast(
                    T.if_then_else(tiles > 0, value[j] / total, 0.0), output.dtype
                )


@T.macro
def merge(partial_output, partial_lse, output, kv_len, kv_tokens, head, sequence, splits, max_pages, head_dim, keys):
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
    tiles = T.alloc_var(I32, init=tiles_of(kv_len[sequence] if keys.paged else kv_tokens, max_pages, keys))
    shares = T.alloc_var(I32, init=T.ceildiv(tiles, T.max(T.ceildiv(tiles, splits), 1)))
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
