"""Several query rows per sequence against keys with no pages: `attention.ragged_prefill`.

By the kernel of `prefill.py`.
"""

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families import attention
from oxide_tile.families.attention import Keys
from oxide_tile.families.common import STATUS
from oxide_tile.families.prefill import PASS_CONFIGS, conditions, prefill

KEYS = Keys("flat")


def ragged_prefill(dtype: str, head_dim: int, stages: int, block_m: int = 128) -> Definition:
    """Keys of one sequence after those of another; `block_m` query rows share a block."""
    starts = Tensor((Name("batch") + 1,), alignment=4)
    return Definition(
        contract="attention.ragged_prefill",
        function=prefill(dtype, head_dim, KEYS, stages, block_m),
        properties={**attention.properties(dtype, KEYS), "mask": "causal"},
        dimensions={
            "batch": Domain(max=65535),
            **attention.dimensions(head_dim, KEYS),
            "tokens": Domain(),
            "kv_tokens": Domain(),
        },
        operands={
            **attention.operands("tokens", head_dim, KEYS),
            "query_start": starts,
            "kv_start": starts,
            "status": STATUS,
        },
        conditions=conditions(block_m),
        derived={"group_size": attention.GROUP_SIZE},
        attributes={"scale": "f32"},
        constants={"head_dim": head_dim},
        pass_configs=PASS_CONFIGS,
    )
