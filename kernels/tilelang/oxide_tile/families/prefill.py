"""Several query rows per sequence against its keys, causal.

What `attention.paged_prefill` and `attention.ragged_prefill` share.

A block attends with 128 rows of one key/value head: a sequence's query rows, each with all query heads of the group,
row after row. Sequences have any number of rows, aligned to the end of their keys, so chunked prefill is among them.

One warpgroup loads tiles of keys and values; two have 64 rows each and take turns at the tensor cores, so that one
makes weights of its scores while the other multiplies. In its turn a warpgroup multiplies for the scores of its next
tile and with the values of this one. Tiles go from the last to the first, so that those that need a mask come before
the loop's steady state.

Where rows are so few that blocks of 128 would leave multiprocessors idle, a block has 64 and one warpgroup for them. A
row meets the same tiles of keys in the same order, so it gets the same bits.
"""

import tilelang.language as T

from oxide_tile.definition import UNLIMITED, Condition, DefinitionError, Domain
from oxide_tile.expr import Binary, Name, Number
from oxide_tile.families import attention
from oxide_tile.families.attention import LOG2_E, LOWEST, PAGE_SIZES, Keys, check_tables, copy_keys
from oxide_tile.families.common import (
    F32,
    I32,
    LENGTH_OUT_OF_RANGE,
    TILE_DTYPES,
    overlap_predecessor,
    report,
    vector_lanes,
)
from oxide_tile.families.starts import check_start

WARP, WARPGROUP = 32, 128
# Rows of a warpgroup, the height of the tensor cores' instruction, and those that a block may have.
ROWS = 64
BLOCK_ROWS = (ROWS, 2 * ROWS)
THREADS_OF_A_ROW = WARPGROUP // ROWS
# Keys of a tile, whatever the size of pages.
KEYS = 128
# Pages of a tile, if they are so few that the producer finds them one by one.
FEW_PAGES = KEYS // max(PAGE_SIZES)
# Elements of a row that lie together in a shared tile: 128 bytes, as wide as the swizzle.
SLICE = 64
# The multiprocessor's 65,536 registers, shared out so that none of two warpgroups of consumers spills in its loop.
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232
# Numbers of named barriers; the compiler uses 3.
ALL_CONSUMERS, FIRST_TURN = 1, 4
FULL_ROW = T.GemmWarpPolicy.FullRow
# 2 to the power of a float without the steps that keep results under 2^-126: those round to 0 here.
EXP2 = """
__device__ __forceinline__ float exp2_flushed(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
"""
# Every index is checked or clamped; the compiler's own checks would repeat that for each element.
PASS_CONFIGS = {"tl.disable_safe_memory_legalize": True}


def conditions(block_m: int) -> tuple[Condition, ...]:
    """The query heads of a group; rows and blocks are counted in 32 bits."""
    rows = Name("tokens") * attention.GROUP_SIZE
    blocks = (Binary("ceil_div", rows, Number(block_m)) + Name("batch")) * Name("num_kv_heads")
    return (
        *attention.conditions(1024),
        Condition(rows, Domain(max=2**30)),
        Condition(blocks, Domain(max=UNLIMITED)),
    )


def prefill(dtype: str, head_dim: int, keys: Keys, stages: int, block_m: int) -> object:
    """The kernel. Of its tensors, those that keys of this kind have no use for are not in what it is lowered to.

    The grid is flat: a place for every tile of `block_m` rows that sequences of `tokens` rows together can have, and at
    each a block for every key/value head.

    With `g` query heads a group, the tiles of a sequence whose rows start at `s` have places from
    `s * g / block_m + its index`. That leaves each sequence a place for its last, partial tile, so a block finds its
    sequence by counting those that end before it. Places that no tile needs do nothing.
    """
    if block_m not in BLOCK_ROWS:
        raise DefinitionError(f"a block has {' or '.join(map(str, BLOCK_ROWS))} rows, not {block_m}")
    consumers = block_m // ROWS * WARPGROUP
    threads = consumers + WARPGROUP
    takes_turns = block_m > ROWS
    tile, lanes = TILE_DTYPES[dtype], vector_lanes(dtype)
    tokens, batch = T.dynamic("tokens"), T.dynamic("batch")
    num_pages, max_pages = T.dynamic("num_pages"), T.dynamic("max_pages")
    num_q_heads, num_kv_heads = T.dynamic("num_q_heads"), T.dynamic("num_kv_heads")
    kv_tokens = T.dynamic("kv_tokens")
    pool = keys.pool(num_pages, num_kv_heads, head_dim)
    pages = KEYS // keys.page_size

    @T.prim_func
    def function(
        q: T.Tensor((tokens, num_q_heads, head_dim), tile),
        k: T.Tensor((kv_tokens, num_kv_heads, head_dim), tile),
        v: T.Tensor((kv_tokens, num_kv_heads, head_dim), tile),
        k_pages: T.Tensor(pool, tile),
        v_pages: T.Tensor(pool, tile),
        block_table: T.Tensor((batch, max_pages), I32),
        kv_len: T.Tensor((batch,), I32),
        query_start: T.Tensor((batch + 1,), I32),
        kv_start: T.Tensor((batch + 1,), I32),
        output: T.Tensor((tokens, num_q_heads, head_dim), tile),
        status: T.Tensor((1,), I32),
        group_size: T.int32,
        scale: T.float32,
    ):
        with T.Kernel((T.ceildiv(tokens * group_size, block_m) + batch) * num_kv_heads, threads=threads) as block:
            T.import_source(EXP2)
            q_tile = T.alloc_shared((block_m, head_dim), tile)
            k_tiles = T.alloc_shared((stages, KEYS, head_dim), tile)
            v_tiles = T.alloc_shared((stages, KEYS, head_dim), tile)
            k_full = T.alloc_barrier([WARPGROUP] * stages)
            v_full = T.alloc_barrier([WARPGROUP] * stages)
            k_free = T.alloc_barrier([consumers] * stages)
            v_free = T.alloc_barrier([consumers] * stages)
            score = T.alloc_fragment((block_m, KEYS), F32)
            weight = T.alloc_fragment((block_m, KEYS), tile)
            sum_ = T.alloc_fragment((block_m, head_dim), F32)
            highest = T.alloc_fragment((block_m,), F32)
            previous = T.alloc_fragment((block_m,), F32)
            correction = T.alloc_fragment((block_m,), F32)
            row_sum = T.alloc_fragment((block_m,), F32)
            total = T.alloc_fragment((block_m,), F32)
            last_visible = T.alloc_fragment((block_m,), I32)
            passed = T.alloc_var(I32, init=0)

            thread = T.get_thread_binding()
            # All heads of a tile before the next, shorter one: the grid would not end on a head's longest.
            place = T.alloc_var(I32, init=T.truncdiv(block, num_kv_heads))
            kv_head = T.alloc_var(I32, init=T.truncmod(block, num_kv_heads))
            if not takes_turns:
                # So short that the next kernel's start shows.
                overlap_predecessor()
            if kv_head == 0 and place < batch:
                if keys.paged:
                    check_tables(
                        status, block_table, place, kv_len[place], max_pages, num_pages, keys.page_size, threads
                    )
                    check_rows(status, query_start, place, tokens, kv_len[place])
                else:
                    check_rows(status, query_start, place, tokens, kv_start[place + 1] - kv_start[place])
                    if thread == 0:
                        # Another name of it, because the compiler names a dimension as it is called here.
                        end = T.alloc_var(I32, init=kv_tokens)
                        check_start(status, kv_start, place, end)
            for step in T.serial(T.ceildiv(batch, threads)):
                entry = T.min(step * threads + thread, batch - 1)
                end = T.max(T.min(query_start[entry + 1], tokens), 0)
                passed += T.syncthreads_count(
                    step * threads + thread < batch and end * group_size // block_m + entry + 1 <= place
                )
            # Variables, because the compiler writes other expressions out at every use.
            sequence = T.alloc_var(I32, init=T.min(passed, batch - 1))
            # Starts and lengths that contradict each other must not lead outside the tensors.
            start = T.alloc_var(I32, init=T.max(T.min(query_start[sequence], tokens), 0))
            query_len = T.alloc_var(I32, init=T.max(T.min(query_start[sequence + 1], tokens) - start, 0))
            if keys.paged:
                length = T.alloc_var(I32, init=kv_len[sequence])
            else:
                first_key = T.alloc_var(I32, init=kv_start[sequence])
                length = T.alloc_var(I32, init=kv_start[sequence + 1] - first_key)
            places = T.alloc_var(I32, init=T.ceildiv(query_len * group_size, block_m))
            turn = T.alloc_var(I32, init=place - (start * group_size // block_m + sequence))
            if turn >= 0 and turn < places:
                # Tiles with the most keys first, so that the grid does not end on them.
                first_row = T.alloc_var(I32, init=(places - 1 - turn) * block_m)
                rows = T.alloc_var(I32, init=T.min(block_m, query_len * group_size - first_row))
                before = T.alloc_var(I32, init=length - query_len)
                last_key = T.alloc_var(I32, init=before + T.truncdiv(first_row + rows - 1, group_size))
                if keys.paged:
                    last_page = T.alloc_var(I32, init=T.max(T.min(T.ceildiv(length, keys.page_size), max_pages) - 1, 0))
                    count = T.alloc_var(I32, init=T.max(T.min(last_key // KEYS, last_page // pages) + 1, 1))
                else:
                    # However far starts that are no starts lead, the tiles there are are the keys'.
                    last_tile = T.min(last_key, kv_tokens - 1) // KEYS
                    count = T.alloc_var(I32, init=T.max(last_tile + 1, 1))
                # The tiles before this one end before every row's own position, and need no mask. A length below the
                # number of rows makes this negative, and the loops below would wait for tiles that nobody loads.
                unmasked = T.alloc_var(I32, init=T.max((before + T.truncdiv(first_row, group_size) + 1) // KEYS, 0))
                masked = T.alloc_var(I32, init=T.max(count - 1 - unmasked, 0))
                if thread >= consumers:
                    if takes_turns:
                        T.set_max_nreg(PRODUCER_REGISTERS, 0)
                    k_way, v_way = (k_tiles, k_full), (v_tiles, v_full)
                    for step in T.serial(count):
                        turn_of_stage = step // stages % 2
                        if not keys.paged:
                            row = T.alloc_var(I32, init=first_key + (count - 1 - step) * KEYS)
                            T.barrier_wait(k_free[step % stages], turn_of_stage ^ 1)
                            begin_rows(k, *k_way, row, kv_head, step % stages, keys)
                            T.barrier_wait(v_free[step % stages], turn_of_stage ^ 1)
                            begin_rows(v, *v_way, row, kv_head, step % stages, keys)
                        elif pages == FEW_PAGES:
                            entry = (count - 1 - step) * pages
                            T.barrier_wait(k_free[step % stages], turn_of_stage ^ 1)
                            begin_load(
                                k_pages, *k_way, block_table, sequence, kv_head, entry, last_page, step % stages, keys
                            )
                            T.barrier_wait(v_free[step % stages], turn_of_stage ^ 1)
                            begin_load(
                                v_pages, *v_way, block_table, sequence, kv_head, entry, last_page, step % stages, keys
                            )
                        else:
                            # Every lane finds a page, before the stage is waited for.
                            entry = T.min((count - 1 - step) * pages + thread % pages, last_page)
                            found = T.alloc_var(I32, init=block_table[sequence, entry])
                            T.barrier_wait(k_free[step % stages], turn_of_stage ^ 1)
                            begin_parts(k_pages, *k_way, found, kv_head, step % stages, keys, consumers)
                            T.barrier_wait(v_free[step % stages], turn_of_stage ^ 1)
                            begin_parts(v_pages, *v_way, found, kv_head, step % stages, keys, consumers)
                else:
                    if takes_turns:
                        T.set_max_nreg(CONSUMER_REGISTERS, 1)
                    load_queries(q, q_tile, start, first_row, rows, kv_head, group_size, head_dim, lanes)
                    T.fence_proxy_async()
                    T.sync_threads(ALL_CONSUMERS, consumers)
                    for i in T.Parallel(block_m):
                        last_visible[i] = before + T.truncdiv(first_row + i, group_size)
                    T.clear(sum_)
                    T.clear(total)
                    T.fill(highest, LOWEST)

                    if takes_turns:
                        # The first warpgroup has the first turn at the tensor cores.
                        if thread >= WARPGROUP:
                            T.named_barrier_arrive(FIRST_TURN, consumers)
                    T.barrier_wait(k_full[0], 0)
                    begin_scores(q_tile, k_tiles[0, 0:KEYS, 0:head_dim], score)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(score, num_regs=ROWS * KEYS // WARPGROUP)
                    T.barrier_arrive(k_free[0])
                    mask(score, last_visible, (count - 1) * KEYS)
                    soften(score, total, highest, previous, correction, row_sum, scale)
                    T.copy(score, weight)
                    if count * KEYS > length:
                        # The weights of keys after the end are 0, but 0 times NaN is NaN.
                        T.barrier_wait(v_full[0], 0)
                        for i, j in T.Parallel(KEYS, head_dim):
                            if (count - 1) * KEYS + i >= length:
                                v_tiles[0, i, j] = T.cast(0, tile)
                        T.fence_proxy_async()
                        T.sync_threads(ALL_CONSUMERS, consumers)
                    # Two loops, because products in flight end where code branches.
                    for masks, first, last in ((True, 0, masked), (False, masked, count - 1)):
                        for step in T.serial(first, last):
                            following = step + 1
                            T.barrier_wait(k_full[following % stages], following // stages % 2)
                            if takes_turns:
                                T.sync_threads(FIRST_TURN + thread // WARPGROUP, consumers)
                            begin_scores(q_tile, k_tiles[following % stages, 0:KEYS, 0:head_dim], score)
                            T.barrier_wait(v_full[step % stages], step // stages % 2)
                            T.wgmma_gemm(weight, v_tiles[step % stages, 0:KEYS, 0:head_dim], sum_, policy=FULL_ROW)
                            if takes_turns:
                                T.named_barrier_arrive(FIRST_TURN + 1 - thread // WARPGROUP, consumers)
                            T.wait_wgmma(1)
                            T.warpgroup_fence_operand(score, num_regs=ROWS * KEYS // WARPGROUP)
                            T.barrier_arrive(k_free[following % stages])
                            if masks:
                                mask(score, last_visible, (count - 1 - following) * KEYS)
                            soften(score, total, highest, previous, correction, row_sum, scale)
                            T.wait_wgmma(0)
                            T.warpgroup_fence_operand(sum_, num_regs=ROWS * head_dim // WARPGROUP)
                            T.barrier_arrive(v_free[step % stages])
                            for i, j in T.Parallel(block_m, head_dim):
                                sum_[i, j] *= correction[i]
                            T.copy(score, weight)
                    T.barrier_wait(v_full[(count - 1) % stages], (count - 1) // stages % 2)
                    T.wgmma_gemm(weight, v_tiles[(count - 1) % stages, 0:KEYS, 0:head_dim], sum_, policy=FULL_ROW)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(sum_, num_regs=ROWS * head_dim // WARPGROUP)
                    for i in T.Parallel(block_m):
                        total[i] = 1.0 / total[i]
                    for i, j in T.Parallel(block_m, head_dim):
                        sum_[i, j] *= total[i]
                    # The queries have been used: their tile turns the results into rows.
                    T.copy(sum_, q_tile)
                    store_rows(q_tile, output, start, first_row, rows, kv_head, group_size, head_dim, lanes)

    return function


@T.macro
def check_rows(status, query_start, sequence, tokens, length):
    """Report starts that are not of these tokens, and fewer keys than rows."""
    if T.get_thread_binding() == 0:
        check_start(status, query_start, sequence, tokens)
        if length < query_start[sequence + 1] - query_start[sequence]:
            report(status, LENGTH_OUT_OF_RANGE, sequence)


@T.macro
def begin_load(pool, tiles, full, block_table, sequence, kv_head, entry, last_page, stage, keys):
    """Begin the copy of a tile from its pages, whose numbers are looked up one by one; `full` tells when it is done."""
    for part in T.unroll(KEYS // keys.page_size):
        page = block_table[sequence, T.min(entry + part, last_page)]
        for slice_ in T.unroll(tiles.shape[2] // SLICE):
            copy_keys(
                pool, tiles, stage, part * keys.page_size, keys.page_size, page, kv_head, slice_ * SLICE, SLICE,
                keys.layout, full,
            )  # fmt: skip
    T.barrier_arrive(full[stage])


@T.macro
def begin_parts(pool, tiles, full, found, kv_head, stage, keys, first_thread):
    """As `begin_load`, where lane `i` of each warp has found the tile's page `i`; each warp begins some copies."""
    parts = KEYS // keys.page_size // (WARPGROUP // WARP)
    for warp in tuple(range(WARPGROUP // WARP)):
        if T.get_thread_binding() >= first_thread + warp * WARP:
            if T.get_thread_binding() < first_thread + (warp + 1) * WARP:
                for part in T.unroll(parts):
                    page = T.alloc_var(I32, init=T.shfl_sync(found, warp * parts + part))
                    for slice_ in T.unroll(tiles.shape[2] // SLICE):
                        copy_keys(
                            pool, tiles, stage, (warp * parts + part) * keys.page_size, keys.page_size, page, kv_head,
                            slice_ * SLICE, SLICE, keys.layout, full,
                        )  # fmt: skip
    T.barrier_arrive(full[stage])


@T.macro
def begin_rows(pool, tiles, full, row, kv_head, stage, keys):
    """As `begin_load`, of a tile that lies in one piece; what is past the keys is zeros."""
    for part in T.unroll(FEW_PAGES):
        for slice_ in T.unroll(tiles.shape[2] // SLICE):
            copy_keys(
                pool, tiles, stage, part * (KEYS // FEW_PAGES), KEYS // FEW_PAGES, row + part * (KEYS // FEW_PAGES),
                kv_head, slice_ * SLICE, SLICE, keys.layout, full,
            )  # fmt: skip
    T.barrier_arrive(full[stage])


@T.macro
def load_queries(q, q_tile, start, first_row, rows, kv_head, group_size, head_dim, lanes):
    """Copy rows of queries, zeros after the last; neighbouring threads take neighbouring pieces of a row."""
    pieces = head_dim // lanes
    consumers = THREADS_OF_A_ROW * q_tile.shape[0]
    for step in T.unroll(pieces // THREADS_OF_A_ROW):
        at_row = (step * consumers + T.get_thread_binding()) // pieces
        column = (step * consumers + T.get_thread_binding()) % pieces * lanes
        query = T.alloc_var(I32, init=T.truncdiv(first_row + at_row, group_size))
        head = kv_head * group_size + first_row + at_row - query * group_size
        for lane in T.vectorized(lanes):
            q_tile[at_row, column + lane] = T.if_then_else(
                at_row < rows, q[start + query, head, column + lane], T.cast(0, q_tile.dtype)
            )


@T.macro
def store_rows(o_tile, output, start, first_row, rows, kv_head, group_size, head_dim, lanes):
    """Copy rows of results, as `load_queries` does."""
    pieces = head_dim // lanes
    consumers = THREADS_OF_A_ROW * o_tile.shape[0]
    for step in T.unroll(pieces // THREADS_OF_A_ROW):
        at_row = (step * consumers + T.get_thread_binding()) // pieces
        column = (step * consumers + T.get_thread_binding()) % pieces * lanes
        query = T.alloc_var(I32, init=T.truncdiv(first_row + at_row, group_size))
        head = kv_head * group_size + first_row + at_row - query * group_size
        if at_row < rows:
            for lane in T.vectorized(lanes):
                output[start + query, head, column + lane] = o_tile[at_row, column + lane]


@T.macro
def begin_scores(q_tile, k_tile, score):
    """Begin the product of queries and keys."""
    T.wgmma_gemm(q_tile, k_tile, score, transpose_B=True, policy=FULL_ROW, clear_accum=True)


@T.macro
def mask(score, last_visible, first_key):
    """Take the keys after each row's own position out of a tile of scores."""
    for i, j in T.Parallel(score.shape[0], KEYS):
        score[i, j] = T.if_then_else(first_key + j <= last_visible[i], score[i, j], LOWEST)


@T.macro
def soften(score, total, highest, previous, correction, row_sum, scale):
    """Turn a tile of scores into weights, and fold it into the running maximum and the weights' total."""
    T.copy(highest, previous)
    T.reduce_max(score, highest, dim=1, clear=False)
    for i in T.Parallel(score.shape[0]):
        correction[i] = T.call_extern(F32, "exp2_flushed", (previous[i] - highest[i]) * (scale * LOG2_E))
    for i in T.Parallel(score.shape[0]):
        # A row that has seen no key yet: scores minus 0, not minus themselves, which rounding spoils at this size.
        previous[i] = T.if_then_else(highest[i] > LOWEST, highest[i] * (scale * LOG2_E), 0.0)
    for i, j in T.Parallel(score.shape[0], KEYS):
        score[i, j] = T.call_extern(F32, "exp2_flushed", score[i, j] * (scale * LOG2_E) - previous[i])
    T.reduce_sum(score, row_sum, dim=1)
    for i in T.Parallel(score.shape[0]):
        total[i] = total[i] * correction[i] + row_sum[i]
