"""The product of one token with 8 rows of a weight, added up as the tiles of few rows in `gemm` add up theirs.

Every warp has a range of k that hangs together, as every block of a cluster has there, and one chain of tensor core
instructions of 16 elements over it. So a row has the same bits here and there (docs/performance.md). Weights of the
first slices come as soon as the block is placed, each slice in a group of its own, the others as places become free.
"""

import tilelang.language as T

from oxide_tile.families.common import F32, I32, U32
from oxide_tile.families.ring import WARP

# Rows of a tile, the columns of a tensor core's right operand; those that come from one place, where it has two.
ROWS, HALF = 8, 4
# Elements of a copy of 16 bytes, and of what four matrices of 8 by 8 have.
VECTOR, PIECE = 8, 32
# Bytes of a multiprocessor's shared memory, of them those that every block takes besides its own, and blocks at most.
SHARED_MEMORY, RESERVED, MOST_BLOCKS = 227 * 1024, 1024, 32
# Warps wait for their own copies only, and for all others by hand.
PASS_CONFIGS = {
    "tl.disable_warp_specialized": True,
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
}


def blocks_of_shared_memory(warps: int, block_k: int, stages: int) -> int:
    """How many blocks a multiprocessor's shared memory has room for."""
    ring = warps * stages * block_k * (ROWS + 1) * 2
    return min(MOST_BLOCKS, SHARED_MEMORY // (ring + warps * ROWS * 4 + RESERVED))


@T.macro
def copy_slice(weight, ring, slot, low, high, at, k, block_k):
    """Begin to copy a slice, no further than to `k`: of four rows from `low` on, and of four from `high` on."""
    warp, lane = T.get_thread_binding() // WARP, T.get_thread_binding() % WARP
    vectors = block_k // VECTOR
    rows = WARP // vectors
    for i in T.unroll(ROWS // rows):
        row = i * rows + lane // vectors
        # Pieces of 16 bytes change places within 128, so that the same of 8 rows lie in different banks.
        T.ptx_cp_async(
            T.access_ptr(ring[slot, warp, row, (lane % vectors ^ row) * VECTOR], "w", VECTOR),
            T.access_ptr(
                weight[low + row if i * rows < HALF else high + row - HALF, at + lane % vectors * VECTOR], "r", VECTOR
            ),
            VECTOR,
            predicate=at + lane % vectors * VECTOR < k,
        )


@T.macro
def copy_token(input, tokens, slot, at, k, block_k):
    """Begin to copy what that slice is multiplied with."""
    warp, lane = T.get_thread_binding() // WARP, T.get_thread_binding() % WARP
    if lane < block_k // VECTOR:
        T.ptx_cp_async(
            T.access_ptr(tokens[slot, warp, lane * VECTOR], "w", VECTOR),
            T.access_ptr(input[0, at + lane * VECTOR], "r", VECTOR),
            VECTOR,
            predicate=at + lane * VECTOR < k,
        )


@T.macro
def load_tokens(input, tokens, first, end, tile, block_k, stages):
    """What the first slices are multiplied with, not behind the weights that are on their way."""
    warp, lane = T.get_thread_binding() // WARP, T.get_thread_binding() % WARP
    held = T.alloc_local((stages, VECTOR), tile)
    for stage in T.unroll(stages):
        # As vectors, so that it is seen that a load takes one.
        at = T.alloc_var(I32, init=(first + stage * block_k) // VECTOR + lane)
        for j in T.vectorized(VECTOR):
            held[stage, j] = T.cast(0.0, tile)
        if lane < block_k // VECTOR and at * VECTOR < end:
            for j in T.vectorized(VECTOR):
                held[stage, j] = input[0, at * VECTOR + j]
    if lane < block_k // VECTOR:
        for stage in T.unroll(stages):
            for j in T.vectorized(VECTOR):
                tokens[stage, warp, lane * VECTOR + j] = held[stage, j]
    T.sync_warp()


@T.macro
def multiply_slice(ring, tokens, sum_, slot, block_k, chains):
    """Go on with one or two chains of 8 rows, of which a lane has two. What is past the range is zeros."""
    warp, lane = T.get_thread_binding() // WARP, T.get_thread_binding() % WARP
    right = T.alloc_local((block_k // PIECE, 4), U32)
    token = T.alloc_local((block_k // PIECE, 4), U32)
    left = T.alloc_local((2, 4), U32)
    for j in T.unroll(block_k // PIECE):
        # In 128 bytes are two pieces.
        place = j // 2 * 2 * PIECE + ((j % 2 * 4 + lane // ROWS) ^ (lane % ROWS)) * VECTOR
        T.ptx_ldmatrix(
            False, 4,
            T.access_ptr(ring[slot, warp, lane % ROWS, place], "r", 8),
            T.access_ptr(right[j, 0], "w", 4),
        )  # fmt: skip
        T.ptx_ldmatrix(
            False, 4,
            T.access_ptr(tokens[slot, warp, j * PIECE + lane // ROWS * VECTOR], "r", 8),
            T.access_ptr(token[j, 0], "w", 4),
        )  # fmt: skip
    for j in T.unroll(block_k // PIECE):
        for side in T.unroll(2):
            # The token is all 16 rows of the left operand.
            for i in T.unroll(4):
                left[side, i] = token[j, side * 2 + i // 2]
            T.ptx_mma(
                F32, "m16n8k16", "row", "col", "bf16", "bf16", "fp32",
                left.data, side * 4, right.data, j * 4 + side * 2, sum_.data, side * 4 * (chains - 1),
                T.bool(False),
            )  # fmt: skip


@T.macro
def multiply_ranges(input, weight, sums, low, high, k, tile, warps, block_k, stages):
    """The sums of 8 rows by range of k, each a warp's. Ranges are as equal as whole slices allow."""
    warp, lane = T.get_thread_binding() // WARP, T.get_thread_binding() % WARP
    ring = T.alloc_shared((stages, warps, ROWS, block_k), tile)
    tokens = T.alloc_shared((stages, warps, block_k), tile)
    slices = T.alloc_var(I32, init=T.ceildiv(k, block_k))
    first = T.alloc_var(I32, init=warp * slices // warps * block_k)
    end = T.alloc_var(I32, init=T.min((warp + 1) * slices // warps * block_k, k))
    sum_ = T.alloc_local((4,), F32)
    for stage in T.unroll(stages):
        copy_slice(weight, ring, stage, low, high, first + stage * block_k, end, block_k)
        T.ptx_commit_group()
    T.pdl_sync()
    load_tokens(input, tokens, first, end, tile, block_k, stages)
    for j in T.unroll(4):
        sum_[j] = 0.0
    for step in T.serial(T.ceildiv(end - first, block_k)):
        slot = T.alloc_var(I32, init=step % stages)
        T.ptx_wait_group(stages - 1)
        T.sync_warp()
        multiply_slice(ring, tokens, sum_, slot, block_k, 1)
        T.sync_warp()
        at = T.alloc_var(I32, init=first + (step + stages) * block_k)
        if at < end:
            copy_slice(weight, ring, slot, low, high, at, end, block_k)
            copy_token(input, tokens, slot, at, end, block_k)
        T.ptx_commit_group()
    if lane < HALF:
        for j in T.unroll(2):
            sums[warp, lane * 2 + j] = sum_[j]
