"""One query row per sequence against keys in pages: `attention.paged_decode`.

A block attends with all query heads of one key/value head, padded to the tensor cores' rows, over a share of the
sequence's pages. The shares depend on the sequence's own length only, so a sequence gets the same bits in any batch.
"""

import tilelang.language as T

from oxide_tile.definition import Definition, DefinitionError, Domain, Tensor
from oxide_tile.families import attention
from oxide_tile.families.attention import LOG2_E, LOWEST, check_tables, clear_unused_slots, update_softmax
from oxide_tile.families.common import F32, I32, PAGE_SIZE, TILE_DTYPES, overlap_predecessor

SPLITS = ("split", "whole")
WARP = 32
# Threads that merge the shares of one row, and the elements that each loads at once.
MERGE_THREADS, MERGE_LANES = 256, 4


def paged_decode(
    dtype: str, head_dim: int, split: str, rows: int, stages: int, threads: int, blocks: int
) -> Definition:
    """With `split` "split" the pages are shared among `splits` blocks, whose results a second kernel merges.

    `rows` are the query heads that a block has room for, `blocks` how many blocks should fit a multiprocessor.
    """
    if split not in SPLITS:
        raise DefinitionError(f"split {split} is none of {', '.join(SPLITS)}")
    tile = TILE_DTYPES[dtype]
    splits_pages = split == "split"
    through_shared = rows < 64
    policy = T.GemmWarpPolicy.FullCol if through_shared else T.GemmWarpPolicy.FullRow
    batch, num_pages, max_pages = T.dynamic("batch"), T.dynamic("num_pages"), T.dynamic("max_pages")
    num_q_heads, num_kv_heads = T.dynamic("num_q_heads"), T.dynamic("num_kv_heads")
    splits = T.dynamic("splits") if splits_pages else 1

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
        with T.Kernel(num_kv_heads, batch, splits, threads=threads) as (kv_head, sequence, share):
            q_tile = T.alloc_shared((rows, head_dim), tile)
            k_tile = T.alloc_shared((PAGE_SIZE, head_dim), tile)
            v_tile = T.alloc_shared((PAGE_SIZE, head_dim), tile)
            score = T.alloc_fragment((rows, PAGE_SIZE), F32)
            weight = (
                T.alloc_shared((rows, PAGE_SIZE), tile) if through_shared else T.alloc_fragment((rows, PAGE_SIZE), tile)
            )
            sum_ = T.alloc_fragment((rows, head_dim), F32)
            highest = T.alloc_fragment((rows,), F32)
            previous = T.alloc_fragment((rows,), F32)
            correction = T.alloc_fragment((rows,), F32)
            row_sum = T.alloc_fragment((rows,), F32)
            total = T.alloc_fragment((rows,), F32)
            # Without this a consumer takes 240 registers, and one block fills the multiprocessor.
            T.no_set_max_nreg()
            T.annotate_min_blocks_per_sm(blocks)

            overlap_predecessor()
            length = kv_len[sequence]
            pages = T.max(T.min(T.ceildiv(length, PAGE_SIZE), max_pages), 0)
            pages_of_share = T.ceildiv(pages, splits)
            first = share * pages_of_share
            count = T.max(T.min(pages_of_share, pages - first), 0)
            if kv_head == 0 and share == 0:
                check_tables(status, block_table, sequence, length, max_pages, num_pages, threads)
            for i, j in T.Parallel(rows, head_dim):
                q_tile[i, j] = T.if_then_else(
                    i < group_size, q[sequence, T.min(kv_head * group_size + i, num_q_heads - 1), j], T.cast(0, tile)
                )
            T.clear(sum_)
            T.clear(total)
            T.fill(highest, LOWEST)
            for step in T.Pipelined(count, num_stages=stages):
                T.copy(k_pages[block_table[sequence, first + step], kv_head, 0:PAGE_SIZE, 0:head_dim], k_tile)
                T.clear(score)
                T.gemm(q_tile, k_tile, score, transpose_B=True, policy=policy)
                for i, j in T.Parallel(rows, PAGE_SIZE):
                    score[i, j] = T.if_then_else(
                        (first + step) * PAGE_SIZE + j < length, score[i, j] * (scale * LOG2_E), LOWEST
                    )
                update_softmax(
                    score, weight, sum_, total, highest, previous, correction, row_sum, rows, PAGE_SIZE, head_dim
                )
                T.copy(v_pages[block_table[sequence, first + step], kv_head, 0:PAGE_SIZE, 0:head_dim], v_tile)
                clear_unused_slots(v_tile, (first + step) * PAGE_SIZE, length, head_dim)
                T.gemm(weight, v_tile, sum_, policy=policy)
            if splits_pages:
                for i, j in T.Parallel(rows, head_dim):
                    if i < group_size and count > 0:
                        partial_output[sequence, kv_head * group_size + i, share, j] = sum_[i, j] / total[i]
                for i in T.Parallel(rows):
                    if i < group_size and count > 0:
                        partial_lse[sequence, kv_head * group_size + i, share] = T.log2(total[i]) + highest[i]
            else:
                for i, j in T.Parallel(rows, head_dim):
                    if i < group_size:
                        output[sequence, kv_head * group_size + i, j] = T.cast(
                            T.if_then_else(count > 0, sum_[i, j] / total[i], 0.0), tile
                        )
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
        constants={"page_size": PAGE_SIZE, "head_dim": head_dim},
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
