"""Several query rows per sequence against keys in pages: `attention.paged_prefill`, by the kernel of `prefill.py`."""

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families import attention
from oxide_tile.families.attention import Keys
from oxide_tile.families.common import PAGE_SIZE
from oxide_tile.families.prefill import PASS_CONFIGS, conditions, prefill


def paged_prefill(
    dtype: str, head_dim: int, stages: int, layout: str = "hnd", page_size: int = PAGE_SIZE, block_m: int = 128
) -> Definition:
    """Pages have `page_size` tokens, in the order of `layout`; `block_m` query rows share a block."""
    keys = Keys(layout, page_size)
    return Definition(
        contract="attention.paged_prefill",
        function=prefill(dtype, head_dim, keys, stages, block_m),
        properties={**attention.properties(dtype, keys), "mask": "causal"},
        dimensions={**attention.dimensions(head_dim, keys), "tokens": Domain()},
        operands={
            **attention.operands("tokens", head_dim, keys),
            "query_start": Tensor((Name("batch") + 1,), alignment=4),
        },
        conditions=conditions(block_m),
        derived={"group_size": attention.GROUP_SIZE},
        attributes={"scale": "f32"},
        constants={"page_size": page_size, "head_dim": head_dim},
        pass_configs=PASS_CONFIGS,
    )
