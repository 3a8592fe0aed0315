"""What the attention families share: the definition, and the checks of the tables."""

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
