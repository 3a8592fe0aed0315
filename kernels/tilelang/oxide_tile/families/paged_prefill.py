"""Several query rows per sequence against keys in pages, causal: `attention.paged_prefill`.

A block attends with `block_m` rows of one key/value head: a sequence's query rows, each with all query heads of the
group, row after row. Sequences have any number of rows, aligned to the end of their keys, which is chunked prefill too.
"""

import tilelang.language as T

from oxide_tile.definition import Condition, Definition, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families import attention
from oxide_tile.families.attention import LOG2_E, LOWEST, check_tables, clear_unused_slots, update_softmax
from oxide_tile.families.common import F32, I32, LENGTH_OUT_OF_RANGE, PAGE_SIZE, TILE_DTYPES, report, vector_lanes


def paged_prefill(dtype: str, head_dim: int, block_m: int, stages: int, threads: int) -> Definition:
    """The grid is flat: a place for every tile of `block_m` rows that sequences of `tokens` rows together can have.

    With `g` query heads a group, the tiles of a sequence whose rows start at `s` have places from
    `s * g / block_m + its index`. That leaves each sequence a place for its last, partial tile, so a block finds its
    sequence by counting those that end before it. Places that no tile needs do nothing.
    """
    tile, lanes = TILE_DTYPES[dtype], vector_lanes(dtype)
    policy = T.GemmWarpPolicy.FullRow
    tokens, batch = T.dynamic("tokens"), T.dynamic("batch")
    num_pages, max_pages = T.dynamic("num_pages"), T.dynamic("max_pages")
    num_q_heads, num_kv_heads = T.dynamic("num_q_heads"), T.dynamic("num_kv_heads")

    @T.prim_func
    def function(
        q: T.Tensor((tokens, num_q_heads, head_dim), tile),
        k_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim), tile),
        v_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim), tile),
        block_table: T.Tensor((batch, max_pages), I32),
        kv_len: T.Tensor((batch,), I32),
        query_start: T.Tensor((batch + 1,), I32),
        output: T.Tensor((tokens, num_q_heads, head_dim), tile),
        status: T.Tensor((1,), I32),
        group_size: T.int32,
        scale: T.float32,
    ):
        with T.Kernel(T.ceildiv(tokens * group_size, block_m) + batch, num_kv_heads, threads=threads) as (
            place,
            kv_head,
        ):
            q_tile = T.alloc_shared((block_m, head_dim), tile)
            k_tile = T.alloc_shared((PAGE_SIZE, head_dim), tile)
            v_tile = T.alloc_shared((PAGE_SIZE, head_dim), tile)
            score = T.alloc_fragment((block_m, PAGE_SIZE), F32)
            weight = T.alloc_fragment((block_m, PAGE_SIZE), tile)
            sum_ = T.alloc_fragment((block_m, head_dim), F32)
            highest = T.alloc_fragment((block_m,), F32)
            previous = T.alloc_fragment((block_m,), F32)
            correction = T.alloc_fragment((block_m,), F32)
            row_sum = T.alloc_fragment((block_m,), F32)
            total = T.alloc_fragment((block_m,), F32)
            last_visible = T.alloc_fragment((block_m,), I32)
            passed = T.alloc_var(I32, init=0)

            thread = T.get_thread_binding()
            if kv_head == 0 and place < batch:
                check_sequence(status, block_table, kv_len, query_start, place, tokens, max_pages, num_pages, threads)
            for step in T.serial(T.ceildiv(batch, threads)):
                entry = T.min(step * threads + thread, batch - 1)
                end = T.max(T.min(query_start[entry + 1], tokens), 0)
                passed += T.syncthreads_count(
                    step * threads + thread < batch and end * group_size // block_m + entry + 1 <= place
                )
            sequence = T.min(passed, batch - 1)
            # Starts and lengths that contradict each other must not lead outside the tensors.
            start = T.max(T.min(query_start[sequence], tokens), 0)
            query_len = T.max(T.min(query_start[sequence + 1], tokens) - start, 0)
            before = kv_len[sequence] - query_len
            places = T.ceildiv(query_len * group_size, block_m)
            # Tiles with the most keys first, so that the grid does not end on them.
            turn = place - (start * group_size // block_m + sequence)
            first_row = (places - 1 - turn) * block_m
            rows = T.if_then_else(turn >= 0 and turn < places, T.min(block_m, query_len * group_size - first_row), 0)
            last_key = before + T.truncdiv(first_row + rows - 1, group_size)
            pages = T.max(T.min(last_key // PAGE_SIZE + 1, max_pages), 0)
            count = T.if_then_else(rows > 0, pages, 0)
            # Not a bulk copy: a block without rows would end before it arrives.
            for i, j in T.Parallel(block_m, head_dim // lanes):
                for lane in T.vectorized(lanes):
                    q_tile[i, j * lanes + lane] = T.if_then_else(
                        i < rows,
                        q[
                            start + T.truncdiv(first_row + i, group_size),
                            kv_head * group_size + T.truncmod(first_row + i, group_size),
                            j * lanes + lane,
                        ],
                        T.cast(0, tile),
                    )
            T.fence_proxy_async()
            for i in T.Parallel(block_m):
                last_visible[i] = before + T.truncdiv(first_row + i, group_size)
            T.clear(sum_)
            T.clear(total)
            T.fill(highest, LOWEST)
            for step in T.Pipelined(count, num_stages=stages):
                T.copy(k_pages[block_table[sequence, step], kv_head, 0:PAGE_SIZE, 0:head_dim], k_tile)
                T.clear(score)
                T.gemm(q_tile, k_tile, score, transpose_B=True, policy=policy)
                for i, j in T.Parallel(block_m, PAGE_SIZE):
                    score[i, j] = T.if_then_else(
                        step * PAGE_SIZE + j <= last_visible[i], score[i, j] * (scale * LOG2_E), LOWEST
                    )
                update_softmax(
                    score, weight, sum_, total, highest, previous, correction, row_sum, block_m, PAGE_SIZE, head_dim
                )
                T.copy(v_pages[block_table[sequence, step], kv_head, 0:PAGE_SIZE, 0:head_dim], v_tile)
                clear_unused_slots(v_tile, step * PAGE_SIZE, kv_len[sequence], head_dim)
                T.gemm(weight, v_tile, sum_, policy=policy)
            for i, j in T.Parallel(block_m, head_dim):
                if i < rows:
                    output[
                        start + T.truncdiv(first_row + i, group_size),
                        kv_head * group_size + T.truncmod(first_row + i, group_size),
                        j,
                    ] = T.cast(sum_[i, j] / total[i], tile)

    return Definition(
        contract="attention.paged_prefill",
        function=function,
        properties={**attention.properties(dtype), "mask": "causal"},
        dimensions={**attention.dimensions(head_dim), "tokens": Domain()},
        operands={
            **attention.operands("tokens", head_dim),
            "query_start": Tensor((Name("batch") + 1,), alignment=4),
        },
        # Rows are counted in 32 bits.
        conditions=(*attention.conditions(1024), Condition(Name("tokens") * attention.GROUP_SIZE, Domain(max=2**30))),
        derived={"group_size": attention.GROUP_SIZE},
        attributes={"scale": "f32"},
        constants={"page_size": PAGE_SIZE, "head_dim": head_dim},
    )


@T.macro
def check_sequence(status, block_table, kv_len, query_start, sequence, tokens, max_pages, num_pages, threads):
    """Report lengths and starts of a sequence that contradict each other, and what `check_tables` reports."""
    check_tables(status, block_table, sequence, kv_len[sequence], max_pages, num_pages, threads)
    if T.get_thread_binding() == 0:
        start, end = query_start[sequence], query_start[sequence + 1]
        if start < 0 or end < start or end > tokens or kv_len[sequence] < end - start:
            report(status, LENGTH_OUT_OF_RANGE, sequence)
