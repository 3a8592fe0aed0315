"""One query row per sequence against its keys: what `attention.paged_decode` and `attention.single_decode` share.

A block attends with all query heads of one key/value head, padded to the tensor cores' rows, over a share of the
sequence's keys, in tiles of 64. The shares depend on the sequence's own length only, so a sequence gets the same bits
in any batch.

One warp copies tiles into a ring of shared memory, page by page where they lie in pages. Each of four others attends
with 16 keys of every tile, and keeps a maximum, a total and a weighted sum of its own, so that warps wait for tiles but
never for each other; what they have at the end is merged in shared memory.

Blocks that share a sequence are either a cluster, each of which finishes its own columns of the result from what the
others write to its memory, or as many as the request asks for, whose results a second kernel merges.

A block may begin before the kernel ahead has ended. With `settled` it then reads lengths, tables, and keys and values
but for the tile that holds a sequence's newest, and waits before that tile and its queries; without, before anything.
"""

from dataclasses import dataclass

import tilelang.language as T
from tilelang.layout import make_swizzled_layout

from oxide_tile.definition import DefinitionError
from oxide_tile.expr import Binary, Expr, Name, Number
from oxide_tile.families.attention import Keys, check_tables
from oxide_tile.families.common import DTYPE_BYTES, F32, I32, TILE_DTYPES
from oxide_tile.families.decode_merge import (
    ALL_CONSUMERS,
    MERGE_LANES,
    MERGE_THREADS,
    PUT_PEER,
    finish,
    merge,
    merge_warps,
    put_down,
    put_piece,
)
from oxide_tile.families.decode_parts import (
    COLUMNS,
    CONSUMERS,
    LANES,
    ROWS,
    STEP,
    TILE,
    WARP,
    WARPS,
    add_values,
    begin,
    load_flat,
    load_pages,
    load_parts,
    load_queries,
    multiply_keys,
    read_queries,
    release,
    soften,
    tiles_of,
    unused_warps,
)

SPLITS = ("split", "shared", "whole")
# Blocks of all sequences and heads together, and most of one, where the caller does not say how many share its keys.
BLOCKS_OF_SHARES, MOST_SHARES = 96, 32
# Blocks that a cluster may have.
CLUSTERS = (1, 2, 4, 8)
# The warps have their parts by hand, and no barrier that all of them could meet at. Every index is checked or follows
# from one that is; the tensor maps hold for pages.
PASS_CONFIGS = {
    "tl.disable_warp_specialized": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_safe_memory_legalize": True,
}


@dataclass(frozen=True)
class Schedule:
    """How keys are shared out.

    With `split` "split" they are shared among `splits` blocks, whose results a second kernel merges; with "shared" too,
    among as many as `shares_of` says. Otherwise `cluster` blocks share them. `rows` are the query heads that a block
    has room for, `ahead` the bytes of keys, and as many of values, that are on their way to it, `blocks` how many
    blocks should fit a multiprocessor.
    """

    split: str
    rows: int
    ahead: int
    blocks: int
    cluster: int

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise DefinitionError(f"split {self.split} is none of {', '.join(SPLITS)}")
        if self.cluster not in CLUSTERS or (self.splits and self.cluster > 1):
            raise DefinitionError(
                f"pages with split {self.split} cannot be shared by a cluster of {self.cluster} blocks"
            )
        if self.rows != ROWS:
            raise DefinitionError(f"a block has room for {ROWS} query heads, not {self.rows}")

    @property
    def splits(self) -> bool:
        """Whether a second kernel merges."""
        return self.split != "whole"

    def shares(self, sequences: Expr) -> Expr:
        """How many blocks share the keys of a sequence and head."""
        if self.split == "split":
            return Name("splits")
        return shares_of(sequences) if self.split == "shared" else Number(self.cluster)

    def stages(self, dtype: str, head_dim: int) -> int:
        """Tiles of keys that are on their way."""
        stages = self.ahead // (TILE * head_dim * DTYPE_BYTES[dtype])
        if stages * TILE * DTYPE_BYTES[dtype] < WARPS * ROWS * DTYPE_BYTES["f32"]:
            raise DefinitionError(f"{self.ahead} bytes of keys leave no room for what the warps have at the end")
        return stages


def shares_of(sequences: Expr) -> Expr:
    """Blocks that share the keys of a sequence and head, where the caller does not say how many.

    So many that three quarters of the multiprocessors have one. With one for each, times are longer: blocks get unlike
    shares of the memory's bandwidth, and the slowest ends last.
    """
    rows = sequences * Name("num_kv_heads")
    return Binary("min", Number(MOST_SHARES), Binary("max", Number(2), Number(BLOCKS_OF_SHARES) // rows))


def decode(dtype: str, head_dim: int, keys: Keys, schedule: Schedule) -> object:
    """The kernel. Of its tensors, those that keys of this kind have no use for are not in what it is lowered to."""
    stages, cluster, blocks = schedule.stages(dtype, head_dim), schedule.cluster, schedule.blocks
    tile = TILE_DTYPES[dtype]
    splits_pages = schedule.splits
    batch, num_pages, max_pages = T.dynamic("batch"), T.dynamic("num_pages"), T.dynamic("max_pages")
    num_q_heads, num_kv_heads = T.dynamic("num_q_heads"), T.dynamic("num_kv_heads")
    kv_tokens = T.dynamic("kv_tokens")
    splits = T.dynamic("splits") if splits_pages else cluster
    sequences = batch if keys.paged else 1
    # A copy of a page of 16 is so small that one warp cannot begin them as fast as they are done.
    copies_apart = keys.paged and keys.page_size < TILE
    whole_pages = keys.paged and not copies_apart
    threads = CONSUMERS + (2 if copies_apart else 1) * WARP
    pool = keys.pool(num_pages, num_kv_heads, head_dim)
    # Columns of the result that a block of a cluster finishes.
    width = head_dim // cluster

    @T.prim_func
    def function(
        q: T.Tensor((sequences, num_q_heads, head_dim), tile),
        k: T.Tensor((kv_tokens, num_kv_heads, head_dim), tile),
        v: T.Tensor((kv_tokens, num_kv_heads, head_dim), tile),
        k_pages: T.Tensor(pool, tile),
        v_pages: T.Tensor(pool, tile),
        block_table: T.Tensor((batch, max_pages), I32),
        kv_len: T.Tensor((batch,), I32),
        partial_output: T.Tensor((sequences, num_q_heads, splits, head_dim), F32),
        partial_lse: T.Tensor((sequences, num_q_heads, splits), F32),
        output: T.Tensor((sequences, num_q_heads, head_dim), tile),
        status: T.Tensor((1,), I32),
        group_size: T.int32,
        scale: T.float32,
        settled: T.int32,
    ):
        with T.Kernel(
            splits,
            num_kv_heads,
            sequences,
            threads=threads,
            cluster_dims=cluster,
            prelude=PUT_PEER if cluster > 1 else None,
        ) as (share, kv_head, sequence):
            q_tile = T.alloc_shared((ROWS, head_dim), tile)
            k_tiles = T.alloc_shared((stages, TILE, head_dim), tile)
            v_tiles = T.alloc_shared((stages, TILE, head_dim), tile)
            # What the warps have at the end takes the place of the keys.
            sums = T.view(k_tiles, (stages * TILE // 2, head_dim), F32)
            peaks = T.alloc_shared((WARPS, ROWS), F32)
            totals = T.alloc_shared((WARPS, ROWS), F32)
            if cluster > 1:
                # Of every block a piece of each row: some columns of its sum, its maximum and its total.
                pieces = T.alloc_shared((cluster, ROWS, width + MERGE_LANES), F32)
            k_full = T.alloc_barrier([1] * stages)
            v_full = T.alloc_barrier([1] * stages)
            k_free = T.alloc_barrier([WARPS] * stages)
            v_free = T.alloc_barrier([WARPS] * stages)
            T.annotate_layout({tiles: make_swizzled_layout(tiles) for tiles in (q_tile, k_tiles, v_tiles)})
            T.annotate_min_blocks_per_sm(blocks)
            thread = T.get_thread_binding()

            T.pdl_trigger()
            if cluster > 1:
                # Others write to this block's memory when all have begun.
                T.cluster_arrive()
            if keys.paged:
                if settled == 0:
                    T.pdl_sync()
            else:
                T.pdl_sync()
            # Variables, because the compiler writes other expressions out at every use.
            length = T.alloc_var(I32, init=kv_len[sequence] if keys.paged else kv_tokens)
            tiles = T.alloc_var(I32, init=tiles_of(length, max_pages, keys))
            tiles_of_share = T.alloc_var(I32, init=T.truncdiv(tiles + splits - 1, splits))
            first = T.alloc_var(I32, init=share * tiles_of_share)
            count = T.alloc_var(I32, init=T.max(T.min(tiles_of_share, tiles - first), 0))
            if thread >= CONSUMERS:
                if keys.paged:
                    k_way, v_way = (k_pages, k_tiles, k_full, k_free), (v_pages, v_tiles, v_full, v_free)
                    if copies_apart:
                        if thread < CONSUMERS + WARP:
                            load_parts(
                                k_way, CONSUMERS, block_table, sequence, kv_head, length, max_pages, first, count,
                                tiles, stages, keys,
                            )  # fmt: skip
                        else:
                            load_parts(
                                v_way, CONSUMERS + WARP, block_table, sequence, kv_head, length, max_pages, first,
                                count, tiles, stages, keys,
                            )  # fmt: skip
                    else:
                        load_pages(
                            k_way, v_way, block_table, sequence, kv_head, length, first, count, tiles, stages, keys
                        )  # fmt: skip
                else:
                    k_way, v_way = (k, k_tiles, k_full, k_free), (v, v_tiles, v_full, v_free)
                    load_flat(k_way, v_way, kv_head, first, count, stages, keys)
                if cluster > 1:
                    T.sync_warp()
                    T.cluster_wait()
            else:
                queries = T.alloc_local((head_dim // STEP, LANES), tile)
                score = T.alloc_local((LANES,), F32)
                weight = T.alloc_local((LANES,), tile)
                sum_ = T.alloc_local((head_dim // COLUMNS, 4), F32)
                highest = T.alloc_local((2,), F32)
                total = T.alloc_local((2,), F32)
                if keys.paged:
                    if kv_head == 0 and share == 0:
                        # While the first pages are on their way.
                        check_tables(
                            status, block_table, sequence, length, max_pages, num_pages, keys.page_size, CONSUMERS
                        )
                    # Also where there is no key: who waits for this kernel waits for all that it follows.
                    T.pdl_sync()
                if count > 0 or not splits_pages:
                    load_queries(q, q_tile, sequence, kv_head, group_size, head_dim, tile)
                    T.sync_threads(ALL_CONSUMERS, CONSUMERS)
                    read_queries(q_tile, queries, head_dim)
                    begin(sum_, highest, total, head_dim)
                    for step in T.serial(count):
                        stage = step % stages
                        left = T.alloc_var(I32, init=length - (first + step) * TILE)
                        # Of a page that is not full a warp's keys lie further on.
                        warp = thread // WARP
                        place = T.alloc_var(I32, init=(warp + unused_warps(left)) % WARPS) if whole_pages else warp
                        T.barrier_wait(k_full[stage], step // stages % 2)
                        multiply_keys(queries, k_tiles, score, stage, place, head_dim)
                        release(k_free, stage)
                        soften(score, weight, sum_, highest, total, left, scale, head_dim, tile)
                        T.barrier_wait(v_full[stage], step // stages % 2)
                        add_values(weight, v_tiles, sum_, stage, place, left, head_dim)
                        release(v_free, stage)
                    # Every page has arrived and every warp has read its keys, so their place is free for good.
                    T.sync_threads(ALL_CONSUMERS, CONSUMERS)
                    put_down(sum_, highest, total, sums, peaks, totals, head_dim)
                    T.sync_threads(ALL_CONSUMERS, CONSUMERS)
                    if cluster > 1:
                        T.cluster_wait()
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
                                put_piece(value, ends, pieces, share, row, column, width)
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
                # All pieces have arrived, so for all that a block needs the others may end.
                T.sync_warp()
                T.cluster_arrive()
                T.cluster_wait()
                if thread < CONSUMERS:
                    finish(output, pieces, sequence, kv_head, group_size, share, width, tiles)
        if splits_pages:
            with T.Kernel(num_q_heads, sequences, threads=MERGE_THREADS) as (head, sequence):
                merge(
                    partial_output, partial_lse, output, kv_len, kv_tokens, head, sequence, splits, max_pages,
                    head_dim, keys,
                )  # fmt: skip

    return function
