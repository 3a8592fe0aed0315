"""One query row per sequence against keys in pages, in one launch: `attention.paged_decode` with `keys=settled`.

A warp attends with all query heads of one key/value head over 16 keys at a time, with nothing to wait for but its own
loads. The warps of a cluster take turns at a sequence's keys and merge what they have in a fixed order. Which warp has
which keys depends on the sequence's length alone, so a sequence gets the same bits in any batch.

All keys but a sequence's last one are loaded before the kernel ahead has ended: they were there before it began.
"""

import tilelang.language as T

from oxide_tile.definition import Definition, DefinitionError, Tensor
from oxide_tile.families import attention
from oxide_tile.families.attention import LOG2_E, LOWEST
from oxide_tile.families.common import (
    F32,
    I32,
    LENGTH_OUT_OF_RANGE,
    PAGE_OUT_OF_RANGE,
    PAGE_SIZE,
    TILE_DTYPES,
    report,
)

WARP = 32
# Keys that a warp attends to at once, and the k of a tensor core's step.
KEYS, STEP = 16, 16
PAD = 8
# Query heads of a key/value head: the lower half of a tensor core's 16 rows.
ROWS = 8


def clustered(dtype: str, head_dim: int, warps: int, stages: int, parts: int, blocks: int) -> Definition:
    """`parts` blocks of a cluster share a sequence; each warp has `stages` times 16 keys and values on their way."""
    if warps * WARP < head_dim:
        raise DefinitionError("a thread merges one element of a head")
    tile = TILE_DTYPES[dtype]
    batch, num_pages, max_pages = T.dynamic("batch"), T.dynamic("num_pages"), T.dynamic("max_pages")
    num_q_heads, num_kv_heads = T.dynamic("num_q_heads"), T.dynamic("num_kv_heads")
    tiles, steps = head_dim // 8, head_dim // STEP

    @T.prim_func
    def function(
        q: T.Tensor((batch, num_q_heads, head_dim), tile),
        k_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim), tile),
        v_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim), tile),
        block_table: T.Tensor((batch, max_pages), I32),
        kv_len: T.Tensor((batch,), I32),
        partial_output: T.Tensor((batch, num_q_heads, parts, head_dim), F32),
        partial_sums: T.Tensor((batch, num_q_heads, parts, 2), F32),
        output: T.Tensor((batch, num_q_heads, head_dim), tile),
        status: T.Tensor((1,), I32),
        group_size: T.int32,
        scale: T.float32,
    ):
        with T.Kernel(num_kv_heads * parts, batch, threads=warps * WARP, cluster_dims=parts) as (block, sequence):
            # Keys, then values, of each stage of each warp.
            ring = T.alloc_shared((warps, stages, 2 * KEYS, head_dim + PAD), tile)
            full = T.alloc_barrier([1] * (warps * stages))
            outputs = T.alloc_shared((warps, ROWS, head_dim), F32)
            highests = T.alloc_shared((warps, ROWS), F32)
            totals = T.alloc_shared((warps, ROWS), F32)
            T.annotate_restrict_buffers(partial_output, partial_sums)
            T.annotate_min_blocks_per_sm(blocks)
            thread = T.get_thread_binding()
            lane = thread % WARP
            warp = thread // WARP
            kv_head = block // parts
            part = block % parts
            zero = T.alloc_local((8,), tile)
            query = T.alloc_local((steps, 8), tile)
            sum_ = T.alloc_local((tiles, 4), F32)
            highest = T.alloc_local((2,), F32)
            total = T.alloc_local((2,), F32)
            T.pdl_trigger()

            wanted = T.alloc_var(I32, init=kv_len[sequence])
            length = T.alloc_var(I32, init=T.max(T.min(wanted, max_pages * PAGE_SIZE), 0))
            units = T.alloc_var(I32, init=T.ceildiv(length, KEYS))
            first = T.alloc_var(I32, init=part * warps + warp)
            count = T.alloc_var(I32, init=T.max(T.ceildiv(units - first, parts * warps), 0))
            page = T.alloc_local((1,), I32)
            if wanted != length and block == 0 and thread == 0:
                report(status, LENGTH_OUT_OF_RANGE, sequence)
            page[0] = 0
            for j in T.unroll(8):
                zero[j] = T.cast(0, tile)

            for i in T.unroll(stages):
                if i < count:
                    load(
                        ring, full, k_pages, v_pages, block_table, status, zero, page, sequence, kv_head,
                        first + i * parts * warps, warp, lane, i, length, 1, num_pages, head_dim, stages,
                    )  # fmt: skip
            T.pdl_sync()
            if count > 0 and count <= stages and first + (count - 1) * parts * warps == units - 1:
                load_last(
                    ring, full, k_pages, v_pages, page, kv_head,
                    units - 1, warp, lane, count - 1, length, num_pages, head_dim, stages,
                )  # fmt: skip

            load_query(q, query, sequence, kv_head, lane, group_size, steps, tile)
            for i in T.unroll(tiles):
                for j in T.unroll(4):
                    sum_[i, j] = 0.0
            for r in T.unroll(2):
                highest[r] = LOWEST
                total[r] = 0.0

            for turn in T.serial(count):
                slot = T.alloc_var(I32, init=warp * stages + turn % stages)
                unit = T.alloc_var(I32, init=first + turn * parts * warps)
                T.mbarrier_wait_parity(full[slot], turn // stages % 2)
                T.sync_warp()
                attend(
                    ring, query, sum_, highest, total, warp, lane, turn % stages, unit, length, scale,
                    steps, tiles, tile,
                )  # fmt: skip
                T.sync_warp()
                if turn + stages < count:
                    load(
                        ring, full, k_pages, v_pages, block_table, status, zero, page, sequence, kv_head,
                        unit + stages * parts * warps, warp, lane, turn % stages, length, 0, num_pages,
                        head_dim, stages,
                    )  # fmt: skip

            # The results lie where the keys were.
            T.sync_threads()
            total[0] += T.shfl_xor(total[0], 1)
            total[0] += T.shfl_xor(total[0], 2)
            for i in T.unroll(tiles):
                for e in T.vectorized(2):
                    outputs[warp, lane // 4, i * 8 + lane % 4 * 2 + e] = sum_[i, e]
            if lane % 4 == 0:
                highests[warp, lane // 4] = highest[0]
                totals[warp, lane // 4] = total[0]
            T.sync_threads()
            if thread < head_dim:
                for row in T.serial(group_size):
                    head = T.alloc_var(I32, init=kv_head * group_size + row)
                    merge_warps(
                        outputs, highests, totals, partial_output, partial_sums,
                        sequence, head, part, row, thread, warps,
                    )  # fmt: skip
            T.cluster_sync()
            if thread < head_dim:
                for step in T.serial(T.ceildiv(group_size - part, parts)):
                    head = T.alloc_var(I32, init=kv_head * group_size + part + step * parts)
                    merge_parts(partial_output, partial_sums, output, sequence, head, thread, parts, tile)

    return Definition(
        contract="attention.paged_decode",
        function=function,
        properties={**attention.properties(dtype), "keys": "settled"},
        dimensions=attention.dimensions(head_dim),
        conditions=attention.conditions(ROWS),
        derived={"group_size": attention.GROUP_SIZE},
        operands={
            **attention.operands("batch", head_dim),
            "partial_output": Tensor(("batch", "num_q_heads", parts, head_dim), "read_write", "workspace"),
            "partial_sums": Tensor(("batch", "num_q_heads", parts, 2), "read_write", "workspace"),
        },
        attributes={"scale": "f32"},
        constants={"page_size": PAGE_SIZE, "head_dim": head_dim, "parts": parts},
        pass_configs={"tl.disable_warp_specialized": True, "tl.disable_thread_storage_sync": True},
    )


@T.macro
def load_query(q, query, sequence, kv_head, lane, group_size, steps, tile):
    """The query heads of a key/value head as a tensor core wants them; rows past the last are zeros."""
    for i in T.unroll(steps):
        for j in T.unroll(4):
            for e in T.vectorized(2):
                query[i, j * 2 + e] = T.cast(0, tile)
        if lane // 4 < group_size:
            for e in T.vectorized(2):
                query[i, e] = q[sequence, kv_head * group_size + lane // 4, i * STEP + lane % 4 * 2 + e]
            for e in T.vectorized(2):
                query[i, 4 + e] = q[sequence, kv_head * group_size + lane // 4, i * STEP + 8 + lane % 4 * 2 + e]


@T.macro
def attend(ring, query, sum_, highest, total, warp, lane, stage, unit, length, scale, steps, tiles, tile):
    """Fold 16 keys and values into the running maximum, the total of the weights and the weighted sum."""
    keys = T.alloc_local((8,), tile)
    weight = T.alloc_local((8,), tile)
    score = T.alloc_local((2, 4), F32)
    before = T.alloc_local((2,), F32)
    row_sum = T.alloc_local((2,), F32)
    for i in T.unroll(2):
        for j in T.unroll(4):
            score[i, j] = 0.0
    for i in T.unroll(steps):
        T.ptx_ldmatrix(
            False, 4,
            T.access_ptr(ring[warp, stage, lane // 16 * 8 + lane % 8, i * STEP + lane // 8 % 2 * 8], "r", 8),
            T.access_ptr(keys[0], "w", 8),
        )  # fmt: skip
        for j in T.unroll(2):
            T.ptx_mma(
                F32, "m16n8k16", "row", "col", "bf16", "bf16", "fp32",
                query.data, i * 8, keys.data, j * 4, score.data, j * 4, T.bool(False),
            )  # fmt: skip
    for r in T.unroll(2):
        before[r] = highest[r]
    for i in T.unroll(2):
        for j in T.unroll(4):
            score[i, j] = T.if_then_else(
                unit * KEYS + i * 8 + lane % 4 * 2 + j % 2 < length, score[i, j] * (scale * LOG2_E), LOWEST
            )
            highest[j // 2] = T.max(highest[j // 2], score[i, j])
    for r in T.unroll(2):
        highest[r] = T.max(highest[r], T.shfl_xor(highest[r], 1))
        highest[r] = T.max(highest[r], T.shfl_xor(highest[r], 2))
        row_sum[r] = 0.0
    for i in T.unroll(2):
        for j in T.unroll(4):
            score[i, j] = T.exp2(score[i, j] - highest[j // 2])
            row_sum[j // 2] += score[i, j]
            weight[i * 4 + j] = T.cast(score[i, j], tile)
    for r in T.unroll(2):
        before[r] = T.exp2(before[r] - highest[r])
        total[r] = total[r] * before[r] + row_sum[r]
    for i in T.unroll(tiles):
        for j in T.unroll(4):
            sum_[i, j] *= before[j // 2]
    for i in T.unroll(tiles // 2):
        T.ptx_ldmatrix(
            True, 4,
            T.access_ptr(ring[warp, stage, KEYS + lane % 16, i * 16 + lane // 16 * 8], "r", 8),
            T.access_ptr(keys[0], "w", 8),
        )  # fmt: skip
        for j in T.unroll(2):
            T.ptx_mma(
                F32, "m16n8k16", "row", "col", "bf16", "bf16", "fp32",
                weight.data, 0, keys.data, j * 4, sum_.data, i * 8 + j * 4, T.bool(False),
            )  # fmt: skip


@T.macro
def merge_warps(
    outputs, highests, totals, partial_output, partial_sums, sequence, head, part, row, element, warps
):  # fmt: skip
    """One element of a head, of all warps of this block: its weighted sum, and the maximum and total it goes by."""
    value = T.alloc_var(F32, init=0.0)
    whole = T.alloc_var(F32, init=0.0)
    top = T.alloc_var(F32, init=LOWEST)
    for other in T.unroll(warps):
        top = T.max(top, highests[other, row])
    for other in T.unroll(warps):
        share = T.alloc_var(F32, init=T.exp2(highests[other, row] - top))
        whole += totals[other, row] * share
        value += outputs[other, row, element] * share
    partial_output[sequence, head, part, element] = value
    if element == 0:
        partial_sums[sequence, head, part, 0] = top
        partial_sums[sequence, head, part, 1] = whole


@T.macro
def merge_parts(partial_output, partial_sums, output, sequence, head, element, parts, tile):
    """One element of a head, of all blocks of the cluster."""
    value = T.alloc_var(F32, init=0.0)
    whole = T.alloc_var(F32, init=0.0)
    top = T.alloc_var(F32, init=LOWEST)
    for other in T.unroll(parts):
        top = T.max(top, partial_sums[sequence, head, other, 0])
    for other in T.unroll(parts):
        share = T.alloc_var(F32, init=T.exp2(partial_sums[sequence, head, other, 0] - top))
        whole += partial_sums[sequence, head, other, 1] * share
        value += partial_output[sequence, head, other, element] * share
    output[sequence, head, element] = T.cast(T.if_then_else(whole > 0.0, value / whole, 0.0), tile)


@T.macro
def load(ring, full, k_pages, v_pages, block_table, status, zero, page, sequence, kv_head, unit, warp, lane, stage,
         length, settled, num_pages, head_dim, stages):  # fmt: skip
    """Begin to copy 16 keys and their values, a lane a row; with `settled` all rows but the sequence's last."""
    row = unit * KEYS + lane % KEYS
    page[0] = block_table[sequence, unit * KEYS // PAGE_SIZE]
    if lane == 0 and (page[0] < 0 or page[0] >= num_pages):
        report(status, PAGE_OUT_OF_RANGE, sequence)
    if page[0] < 0 or page[0] >= num_pages or row >= length:
        for i in T.unroll(head_dim // 8):
            for j in T.vectorized(8):
                ring[warp, stage, lane, i * 8 + j] = zero[j]
    if page[0] < 0 or page[0] >= num_pages:
        if lane == 0:
            T.mbarrier_arrive_expect_tx(full[warp * stages + stage], 0)
    else:
        if lane == 0:
            T.mbarrier_arrive_expect_tx(full[warp * stages + stage], T.min(KEYS, length - unit * KEYS) * (4 * head_dim))
        T.sync_warp()
        if row < length - settled:
            copy_row(ring, full, k_pages, v_pages, page[0], kv_head, row, warp, lane, stage, head_dim, stages)


@T.macro
def load_last(ring, full, k_pages, v_pages, page, kv_head, unit, warp, lane, stage, length, num_pages, head_dim,
              stages):  # fmt: skip
    """Copy the last key and value of a sequence, which the kernel ahead has written."""
    if page[0] >= 0 and page[0] < num_pages and unit * KEYS + lane % KEYS == length - 1:
        copy_row(ring, full, k_pages, v_pages, page[0], kv_head, length - 1, warp, lane, stage, head_dim, stages)


@T.macro
def copy_row(ring, full, k_pages, v_pages, page, kv_head, row, warp, lane, stage, head_dim, stages):
    """Lanes below 16 copy a key, the others a value."""
    if lane < KEYS:
        T.tma_load(
            T.access_ptr(ring[warp, stage, lane, 0], "w", head_dim),
            T.access_ptr(k_pages[page, kv_head, row % PAGE_SIZE, 0], "r", head_dim),
            full[warp * stages + stage],
            T.uint32(head_dim * 2),
            0,
        )
    else:
        T.tma_load(
            T.access_ptr(ring[warp, stage, lane, 0], "w", head_dim),
            T.access_ptr(v_pages[page, kv_head, row % PAGE_SIZE, 0], "r", head_dim),
            full[warp * stages + stage],
            T.uint32(head_dim * 2),
            0,
        )
