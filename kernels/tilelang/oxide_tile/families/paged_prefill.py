"""Several query rows per sequence against keys in pages: `attention.paged_prefill`, by the kernel of `prefill.py`."""

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families import attention
from oxide_tile.families.attention import Keys
from oxide_tile.families.common import PAGE_SIZE
from oxide_tile.families.prefill import CONDITIONS, PASS_CONFIGS, prefill


def paged_prefill(
    dtype: str, head_dim: int, stages: int, layout: str = "hnd", page_size: int = PAGE_SIZE
) -> Definition:
    """Pages have `page_size` tokens, in the order of `layout`."""
    keys = Keys(layout, page_size)
    return Definition(
        contract="attention.paged_prefill",
        function=prefill(dtype, head_dim, keys, stages),
        properties={**attention.properties(dtype, keys), "mask": "causal"},
        dimensions={**attention.dimensions(head_dim, keys), "tokens": Domain()},
        operands={
            **attention.operands("tokens", head_dim, keys),
            "query_start": Tensor((Name("batch") + 1,), alignment=4),
        },
        conditions=CONDITIONS,
        derived={"group_size": attention.GROUP_SIZE},
        attributes={"scale": "f32"},
        constants={"page_size": page_size, "head_dim": head_dim},
        pass_configs=PASS_CONFIGS,
    )
