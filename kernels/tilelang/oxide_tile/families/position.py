"""Rotary embedding of heads, by a table of cosines and sines: `position.rope`.

One block a token; a thread turns 8 pairs at a time.
"""

import tilelang.language as T

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.families.common import (
    F32,
    I32,
    POSITION_OUT_OF_RANGE,
    STATUS,
    TILE_DTYPES,
    exactly,
    overlap_predecessor,
    report,
)
from oxide_tile.families.rotation import PAIRS, load_pairs, store_pairs, turn_pairs


def rope(dtype: str, head_dim: int, threads: int) -> Definition:
    """Heads of `head_dim` elements that all turn. A token whose position is not in the table turns as at position 0."""
    tile = TILE_DTYPES[dtype]
    half = head_dim // 2
    slices = half // PAIRS  # threads that share a head
    tokens, num_heads, max_positions = T.dynamic("tokens"), T.dynamic("num_heads"), T.dynamic("max_positions")

    @T.prim_func
    def function(
        input: T.Tensor((tokens, num_heads, head_dim), tile),
        positions: T.Tensor((tokens,), I32),
        rotations: T.Tensor((max_positions, half, 2), F32),
        output: T.Tensor((tokens, num_heads, head_dim), tile),
        status: T.Tensor((1,), I32),
    ):
        with T.Kernel(tokens, threads=threads) as token:
            overlap_predecessor()
            thread = T.get_thread_binding()
            position = positions[token]
            turns = position >= 0 and position < max_positions
            if thread == 0:
                if not turns:
                    report(status, POSITION_OUT_OF_RANGE, token)
            angle = T.if_then_else(turns, position, 0)
            low = T.alloc_local((PAIRS,), F32)
            high = T.alloc_local((PAIRS,), F32)
            turned_low = T.alloc_local((PAIRS,), tile)
            turned_high = T.alloc_local((PAIRS,), tile)
            for step in T.serial(T.ceildiv(num_heads * slices, threads)):
                item = step * threads + thread
                head = item // slices
                at = item % slices * PAIRS
                if head < num_heads:
                    load_pairs(input, low, high, token, head, at, half)
                    turn_pairs(rotations, low, high, turned_low, turned_high, angle, at, tile)
                    store_pairs(turned_low, turned_high, output, token, head, at, half)

    heads = ("tokens", "num_heads", head_dim)
    return Definition(
        contract="position.rope",
        function=function,
        properties={"dtype": dtype, "pairing": "neox"},
        dimensions={
            "tokens": Domain(),
            "num_heads": Domain(max=65535),
            "head_dim": exactly(head_dim),
            "rotary_dim": exactly(head_dim),
            "max_positions": Domain(),
        },
        operands={
            "input": Tensor(heads),
            "positions": Tensor(("tokens",), alignment=4),
            "rotations": Tensor(("max_positions", half, 2)),
            "output": Tensor(heads, "write"),
            "status": STATUS,
        },
        constants={"head_dim": head_dim},
    )
