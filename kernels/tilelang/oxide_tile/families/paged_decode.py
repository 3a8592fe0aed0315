"""One query row per sequence against keys in pages: `attention.paged_decode`, by the kernel of `decode.py`."""

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families import attention
from oxide_tile.families.attention import Keys
from oxide_tile.families.common import PAGE_SIZE
from oxide_tile.families.decode import PASS_CONFIGS, Schedule, decode


def paged_decode(
    dtype: str, head_dim: int, split: str, layout: str = "hnd", page_size: int = PAGE_SIZE, **schedule: int
) -> Definition:
    """`split` and the schedule are those of `Schedule`; pages have `page_size` tokens, in the order of `layout`."""
    keys, schedule = Keys(layout, page_size), Schedule(split, **schedule)
    shares = schedule.shares(Name("batch"))
    return Definition(
        contract="attention.paged_decode",
        function=decode(dtype, head_dim, keys, schedule),
        properties=attention.properties(dtype, keys),
        dimensions={
            **attention.dimensions(head_dim, keys),
            **({"splits": Domain(max=256)} if split == "split" else {}),
        },
        conditions=attention.conditions(schedule.rows),
        derived={"group_size": attention.GROUP_SIZE, "splits": shares},
        operands={
            **attention.operands("batch", head_dim, keys),
            "partial_output": Tensor(("batch", "num_q_heads", shares, head_dim), "read_write", "workspace"),
            "partial_lse": Tensor(("batch", "num_q_heads", shares), "read_write", "workspace"),
        },
        attributes={"scale": "f32"},
        constants={
            "page_size": page_size,
            "head_dim": head_dim,
            **({} if schedule.splits else {"splits": schedule.cluster}),
        },
        pass_configs=PASS_CONFIGS,
    )
