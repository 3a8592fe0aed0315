"""Several query rows per sequence against keys in pages, causal: `attention.paged_prefill`.

A block attends with `block_m` consecutive rows of one query head. Sequences have any number of rows, aligned to the end
of their keys, which is chunked prefill too; blocks past a sequence's last row do nothing.
"""

import tilelang.language as T

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families import attention
from oxide_tile.families.attention import LOG2_E, LOWEST, check_tables, clear_unused_slots, update_softmax
from oxide_tile.families.common import F32, I32, LENGTH_OUT_OF_RANGE, PAGE_SIZE, TILE_DTYPES, report, vector_lanes


def paged_prefill(dtype: str, head_dim: int, block_m: int, stages: int, threads: int) -> Definition:
    """`max_query_len` bounds the rows of a sequence and gives the grid."""
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
        max_query_len: T.int32,
        group_size: T.int32,
        scale: T.float32,
    ):
        with T.Kernel(T.ceildiv(max_query_len, block_m), num_q_heads, batch, threads=threads) as (
            block,
            head,
            sequence,
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

            kv_head = head // group_size
            # Starts and lengths that contradict each other must not lead outside the tensors.
            start = T.max(T.min(query_start[sequence], tokens), 0)
            query_len = T.min(T.min(query_start[sequence + 1], tokens) - start, max_query_len)
            length = kv_len[sequence]
            before = length - query_len
            # Longest blocks first, so that the grid does not end on them.
            first_row = (T.ceildiv(max_query_len, block_m) - 1 - block) * block_m
            rows = T.min(block_m, query_len - first_row)
            last_key = before + first_row + rows
            pages = T.max(T.min(T.ceildiv(last_key, PAGE_SIZE), max_pages), 0)
            count = T.if_then_else(rows > 0, pages, 0)
            if block == 0 and head == 0:
                check_tables(status, block_table, sequence, length, max_pages, num_pages, threads)
                if T.get_thread_binding() == 0:
                    if query_len < 0 or before < 0 or query_start[sequence + 1] - query_start[sequence] != query_len:
                        report(status, LENGTH_OUT_OF_RANGE, sequence)
            # Not a bulk copy: a block without rows would end before it arrives.
            for i, j in T.Parallel(block_m, head_dim // lanes):
                for lane in T.vectorized(lanes):
                    q_tile[i, j * lanes + lane] = T.if_then_else(
                        i < rows, q[start + first_row + i, head, j * lanes + lane], T.cast(0, tile)
                    )
            T.fence_proxy_async()
            T.clear(sum_)
            T.clear(total)
            T.fill(highest, LOWEST)
            for step in T.Pipelined(count, num_stages=stages):
                T.copy(k_pages[block_table[sequence, step], kv_head, 0:PAGE_SIZE, 0:head_dim], k_tile)
                T.clear(score)
                T.gemm(q_tile, k_tile, score, transpose_B=True, policy=policy)
                for i, j in T.Parallel(block_m, PAGE_SIZE):
                    score[i, j] = T.if_then_else(
                        step * PAGE_SIZE + j <= before + first_row + i, score[i, j] * (scale * LOG2_E), LOWEST
                    )
                update_softmax(
                    score, weight, sum_, total, highest, previous, correction, row_sum, block_m, PAGE_SIZE, head_dim
                )
                T.copy(v_pages[block_table[sequence, step], kv_head, 0:PAGE_SIZE, 0:head_dim], v_tile)
                clear_unused_slots(v_tile, step * PAGE_SIZE, length, head_dim)
                T.gemm(weight, v_tile, sum_, policy=policy)
            for i, j in T.Parallel(block_m, head_dim):
                if i < rows:
                    output[start + first_row + i, head, j] = T.cast(
                        T.if_then_else(before + first_row + i >= 0, sum_[i, j] / total[i], 0.0), tile
                    )

    return Definition(
        contract="attention.paged_prefill",
        function=function,
        properties={**attention.properties(dtype), "mask": "causal"},
        dimensions={**attention.dimensions(head_dim), "tokens": Domain(), "max_query_len": Domain(max=2**30)},
        operands={
            **attention.operands("tokens", head_dim),
            "query_start": Tensor((Name("batch") + 1,), alignment=4),
        },
        conditions=attention.conditions(1024),
        derived={"group_size": attention.GROUP_SIZE},
        attributes={"scale": "f32"},
        constants={"page_size": PAGE_SIZE, "head_dim": head_dim},
    )
