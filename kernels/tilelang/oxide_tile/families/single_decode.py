"""One query row against the keys of one sequence, with no pages: `attention.single_decode`.

By the kernel of `decode.py`.
"""

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families import attention
from oxide_tile.families.attention import Keys
from oxide_tile.families.decode import PASS_CONFIGS, Schedule, decode

KEYS = Keys("flat")


def single_decode(dtype: str, head_dim: int, split: str, **schedule: int) -> Definition:
    """`split` and the schedule are those of `Schedule`."""
    schedule = Schedule(split, **schedule)
    keys = Tensor(("kv_len", "num_kv_heads", head_dim))
    return Definition(
        contract="attention.single_decode",
        function=decode(dtype, head_dim, KEYS, schedule),
        properties=attention.properties(dtype, KEYS),
        dimensions={
            **attention.dimensions(head_dim, KEYS),
            "kv_len": Domain(),
            **({"splits": Domain(max=256)} if schedule.splits else {}),
        },
        conditions=attention.conditions(schedule.rows),
        derived={"group_size": attention.GROUP_SIZE, "kv_tokens": Name("kv_len")},
        operands={
            **attention.operands(1, head_dim, KEYS),
            "k": keys,
            "v": keys,
            "partial_output": Tensor((1, "num_q_heads", "splits", head_dim), "read_write", "workspace"),
            "partial_lse": Tensor((1, "num_q_heads", "splits"), "read_write", "workspace"),
        },
        attributes={"scale": "f32"},
        constants={"head_dim": head_dim, **({} if schedule.splits else {"splits": schedule.cluster})},
        pass_configs=PASS_CONFIGS,
    )
