"""What the attention families share: the definition, the checks of the tables, and one step of the running softmax."""

import tilelang.language as T

from oxide_tile.definition import Condition, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families.common import (
    LENGTH_OUT_OF_RANGE,
    PAGE_OUT_OF_RANGE,
    PAGE_SIZE,
    PAGING,
    STATUS,
    exactly,
    report,
)

# Stands for minus infinity where a difference of two of them must not be NaN.
LOWEST = -1.0e30
LOG2_E = 1.4426950408889634


def properties(dtype: str) -> dict[str, str]:
    """Properties of every attention kernel here."""
    return {"dtype": dtype, "window": "none", "soft_cap": "none", "lse": "absent", **PAGING}


def dimensions(head_dim: int) -> dict[str, Domain]:
    """Dimensions of every attention kernel here."""
    return {
        "batch": Domain(max=65535),
        "num_q_heads": Domain(max=65535),
        "num_kv_heads": Domain(max=1024),
        "head_dim": exactly(head_dim),
        "page_size": exactly(PAGE_SIZE),
        "num_pages": Domain(),
        "max_pages": Domain(max=2**24),
    }


GROUP_SIZE = Name("num_q_heads") // Name("num_kv_heads")


def conditions(max_group_size: int) -> tuple[Condition, ...]:
    """As many query heads share each key/value head, and no more than a block has rows for."""
    return (
        Condition(Name("num_q_heads") % Name("num_kv_heads"), exactly(0)),
        Condition(GROUP_SIZE, Domain(max=max_group_size)),
    )


def operands(rows: str, head_dim: int) -> dict[str, Tensor]:
    """Operands of every attention kernel here; `rows` are the query rows."""
    pool = Tensor(("num_pages", "num_kv_heads", PAGE_SIZE, head_dim))
    return {
        "q": Tensor((rows, "num_q_heads", head_dim)),
        "k_pages": pool,
        "v_pages": pool,
        "block_table": Tensor(("batch", "max_pages"), alignment=4),
        "kv_len": Tensor(("batch",), alignment=4),
        "output": Tensor((rows, "num_q_heads", head_dim), "write"),
        "status": STATUS,
    }


@T.macro
def check_tables(status, block_table, sequence, length, max_pages, num_pages, threads):
    """Report a length that the table's row cannot hold and pages that are not in the pool."""
    thread = T.get_thread_binding()
    if thread == 0:
        if length < 0 or length > max_pages * PAGE_SIZE:
            report(status, LENGTH_OUT_OF_RANGE, sequence)
    pages = T.max(T.min(T.ceildiv(length, PAGE_SIZE), max_pages), 0)
    for step in T.serial(T.ceildiv(pages, threads)):
        entry = step * threads + thread
        if entry < pages:
            page = block_table[sequence, entry]
            if page < 0 or page >= num_pages:
                report(status, PAGE_OUT_OF_RANGE, sequence)


@T.macro
def clear_unused_slots(v_tile, first_position, length, head_dim):
    """Zero the slots of a page past the end of its sequence: their weights are 0, but 0 times NaN is NaN."""
    if first_position + PAGE_SIZE > length:
        for i, j in T.Parallel(PAGE_SIZE, head_dim):
            # Written as a read, before which the compiler waits for the page to arrive.
            v_tile[i, j] = T.if_then_else(first_position + i < length, v_tile[i, j], T.cast(0, v_tile.dtype))


@T.macro
def update_softmax(score, weight, sum_, total, highest, previous, correction, row_sum, rows, keys, head_dim):
    """Fold a tile of scaled, masked scores into the running maximum, weights, their total and the weighted sum."""
    T.copy(highest, previous)
    T.reduce_max(score, highest, dim=1, clear=False)
    for i in T.Parallel(rows):
        correction[i] = T.exp2(previous[i] - highest[i])
    for i, j in T.Parallel(rows, keys):
        score[i, j] = T.exp2(score[i, j] - highest[i])
    T.reduce_sum(score, row_sum, dim=1)
    for i in T.Parallel(rows):
        total[i] = total[i] * correction[i] + row_sum[i]
    T.copy(score, weight)
    for i, j in T.Parallel(rows, head_dim):
        sum_[i, j] *= correction[i]
