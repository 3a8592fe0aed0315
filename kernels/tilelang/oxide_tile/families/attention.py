"""What the attention families share: where keys lie, the definition, and the checks of the tables."""

from dataclasses import dataclass

import tilelang.language as T

from oxide_tile.definition import Condition, DefinitionError, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families.common import (
    LENGTH_OUT_OF_RANGE,
    PAGE_OUT_OF_RANGE,
    PAGE_SIZE,
    STATUS,
    exactly,
    report,
)

# Stands for minus infinity where a difference of two of them must not be NaN.
LOWEST = -1.0e30
LOG2_E = 1.4426950408889634


# Tokens of a page: one, or several of a tile of a kernel.
PAGE_SIZES = (16, PAGE_SIZE)
PAGED_LAYOUTS = ("hnd", "nhd")


@dataclass(frozen=True)
class Keys:
    """Where keys and values lie: in pages, each head's tokens together ("hnd") or each token's heads ("nhd").

    Or token after token with no pages ("flat"); then `page_size` means nothing.
    """

    layout: str = "hnd"
    page_size: int = PAGE_SIZE

    def __post_init__(self) -> None:
        if self.layout not in (*PAGED_LAYOUTS, "flat") or self.page_size not in PAGE_SIZES:
            raise DefinitionError(f"no kernel is for pages of {self.page_size} tokens in layout {self.layout}")

    @property
    def paged(self) -> bool:
        """Whether there are pages."""
        return self.layout != "flat"

    def pool(self, num_pages: object, num_kv_heads: object, head_dim: int) -> tuple[object, ...]:
        """The shape of a pool of pages."""
        if self.layout == "nhd":
            return num_pages, self.page_size, num_kv_heads, head_dim
        return num_pages, num_kv_heads, self.page_size, head_dim


def properties(dtype: str, keys: Keys) -> dict[str, str]:
    """Properties of every attention kernel here."""
    paging = {"kv_dtype": dtype, "page_layout": keys.layout} if keys.paged else {}
    return {"dtype": dtype, "window": "none", "soft_cap": "none", "lse": "absent", **paging}


def dimensions(head_dim: int, keys: Keys) -> dict[str, Domain]:
    """Dimensions of every attention kernel here, but the rows of queries and flat keys."""
    heads = {
        "num_q_heads": Domain(max=65535),
        "num_kv_heads": Domain(max=1024),
        "head_dim": exactly(head_dim),
    }
    pages = {"page_size": exactly(keys.page_size), "num_pages": Domain(), "max_pages": Domain(max=2**24)}
    return {"batch": Domain(max=65535), **heads, **pages} if keys.paged else heads


GROUP_SIZE = Name("num_q_heads") // Name("num_kv_heads")


def conditions(max_group_size: int) -> tuple[Condition, ...]:
    """As many query heads share each key/value head, and no more than a block has rows for."""
    return (
        Condition(Name("num_q_heads") % Name("num_kv_heads"), exactly(0)),
        Condition(GROUP_SIZE, Domain(max=max_group_size)),
    )


def operands(rows: str | int, head_dim: int, keys: Keys) -> dict[str, Tensor]:
    """Operands of every attention kernel here; `rows` are the query rows."""
    return {
        "q": Tensor((rows, "num_q_heads", head_dim)),
        **(paged_operands(head_dim, keys) if keys.paged else flat_operands(head_dim)),
        "output": Tensor((rows, "num_q_heads", head_dim), "write"),
    }


def paged_operands(head_dim: int, keys: Keys) -> dict[str, Tensor]:
    """Pools, and what says which of their pages are whose."""
    pool = Tensor(keys.pool("num_pages", "num_kv_heads", head_dim))
    return {
        "k_pages": pool,
        "v_pages": pool,
        "block_table": Tensor(("batch", "max_pages"), alignment=4),
        "kv_len": Tensor(("batch",), alignment=4),
        "status": STATUS,
    }


def flat_operands(head_dim: int) -> dict[str, Tensor]:
    """Keys and values that lie token after token."""
    tokens = Tensor(("kv_tokens", "num_kv_heads", head_dim))
    return {"k": tokens, "v": tokens}


@T.macro
def copy_keys(pool, tiles, stage, row, rows, page, kv_head, column, columns, layout, full, start=0):
    """Begin the copy of some columns of so many rows into a tile.

    They are those of page `page` from its row `start` on, or the flat ones from row `page` on. Rows before the page's
    first are zeros that no memory is read for.
    """
    if layout == "hnd":
        T.tma_copy(
            pool[page, kv_head, start : start + rows, column : column + columns],
            tiles[stage, row : row + rows, column : column + columns],
            barrier=full[stage],
        )
    elif layout == "nhd":
        T.tma_copy(
            pool[page, start : start + rows, kv_head, column : column + columns],
            tiles[stage, row : row + rows, column : column + columns],
            barrier=full[stage],
        )
    else:
        T.tma_copy(
            pool[page : page + rows, kv_head, column : column + columns],
            tiles[stage, row : row + rows, column : column + columns],
            barrier=full[stage],
        )


@T.macro
def check_tables(status, block_table, sequence, length, max_pages, num_pages, page_size, threads):
    """Report a length that the table's row cannot hold and pages that are not in the pool."""
    thread = T.get_thread_binding()
    if thread == 0:
        if length < 0 or length > max_pages * page_size:
            report(status, LENGTH_OUT_OF_RANGE, sequence)
    pages = T.max(T.min(T.ceildiv(length, page_size), max_pages), 0)
    for step in T.serial(T.ceildiv(pages, threads)):
        entry = step * threads + thread
        if entry < pages:
            page = block_table[sequence, entry]
            if page < 0 or page >= num_pages:
                report(status, PAGE_OUT_OF_RANGE, sequence)
