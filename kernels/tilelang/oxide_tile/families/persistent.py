"""What products share whose blocks stay for all tiles: the walk over these, registers, and how results leave."""

import tilelang.language as T

from oxide_tile.expr import Binary, Expr, Name, Number
from oxide_tile.families.common import I32
from oxide_tile.families.ring import WARP

# Blocks that stay: of an H100 or H200 with SXM. Others run the same grid, in more waves or with idle multiprocessors.
MULTIPROCESSORS = 132
# The multiprocessor's 65,536 registers, shared out so that no consumer spills.
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, {1: 240, 2: 232}
# Elements of a row that lie together in a shared tile: 128 bytes, as wide as the swizzle.
SLICE = 64
# Slices of results on their way out.
RESULT_BUFFERS = 2
# Number of a named barrier; the compiler uses 3.
ALL_CONSUMERS = 1


def ceil_div(dimension: str, size: int) -> Expr:
    """How many pieces of `size` cover a dimension."""
    return Binary("ceil_div", Name(dimension), Number(size))


@T.macro
def locate(place, rows, tiles, panel, splits):
    """The share of k, row and column at a place of the walk: down a panel's rows, its next column, the next panel."""
    share = T.alloc_var(I32, init=T.truncdiv(place, rows * tiles) if splits > 1 else 0)
    within = T.alloc_var(I32, init=place - share * (rows * tiles))
    first_row = T.alloc_var(I32, init=T.truncdiv(within, panel * tiles) * panel)
    height = T.alloc_var(I32, init=T.min(panel, rows - first_row))
    inside = T.alloc_var(I32, init=within - first_row * tiles)
    column = T.alloc_var(I32, init=T.truncdiv(inside, height))
    row = T.alloc_var(I32, init=first_row + inside - column * height)
    return share, row, column


@T.macro
def store_slices(result, results, output, row, column, before, block_m, columns, threads):
    """Round a tile's results and send them off slice by slice, from buffers in turn; `before` slices went before.

    `threads` multiply, and all of them come here.
    """
    for slice_ in T.unroll(columns // SLICE):
        # The copy that last read this buffer has ended.
        if T.get_thread_binding() < WARP:
            T.tma_store_wait(RESULT_BUFFERS - 1)
        T.sync_threads(ALL_CONSUMERS, threads)
        buffer = (before + slice_) % RESULT_BUFFERS
        T.copy(result[0:block_m, slice_ * SLICE : (slice_ + 1) * SLICE], results[buffer, 0:block_m, 0:SLICE])
        T.fence_proxy_async()
        T.sync_threads(ALL_CONSUMERS, threads)
        if T.get_thread_binding() < WARP:
            first = column * columns + slice_ * SLICE
            T.tma_copy(
                results[buffer, 0:block_m, 0:SLICE],
                output[row * block_m : (row + 1) * block_m, first : first + SLICE],
            )
