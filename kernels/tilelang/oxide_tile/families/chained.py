"""What products that share a norm with their neighbours have in common: their contracts, and how heads end.

`chained_gemm` has those of few rows, and says what `weighted` leaves and what `scaled_*` make of it.
"""

import tilelang.language as T

from oxide_tile.definition import UNLIMITED, Condition, Definition, Domain, Tensor
from oxide_tile.expr import Binary, Expr, Name
from oxide_tile.families.common import (
    I32,
    LENGTH_OUT_OF_RANGE,
    PAGE_OUT_OF_RANGE,
    PAGE_SIZE,
    PAGING,
    POSITION_OUT_OF_RANGE,
    STATUS,
    exactly,
    part,
    report,
    vector_lanes,
)
from oxide_tile.families.split import QUAD

# Numbers that turn four pairs.
LANES = 2 * QUAD
# Elements of the residual stream whose squares are summed by the product that writes them, and sums that a lane loads.
SQUARES = 8
SUMS = 4


@T.macro
def find_place(status, positions, block_table, place, turn, token, says, max_positions, max_pages, num_pages):
    """Where a token turns and where it is appended: an angle, a page, each -1 if there is none, and a slot."""
    position = T.alloc_var(I32, init=positions[token])
    place[turn, 0] = -1
    place[turn, 1] = -1
    place[turn, 2] = position % PAGE_SIZE
    if position >= 0 and position < max_positions:
        place[turn, 0] = position
    elif says:
        report(status, POSITION_OUT_OF_RANGE, token)
    if position >= 0 and position < max_pages * PAGE_SIZE:
        place[turn, 1] = block_table[token, position // PAGE_SIZE]
        if place[turn, 1] < 0 or place[turn, 1] >= num_pages:
            place[turn, 1] = -1
            if says:
                report(status, PAGE_OUT_OF_RANGE, token)
    elif says:
        report(status, LENGTH_OUT_OF_RANGE, token)
    if place[turn, 0] < 0:
        place[turn, 1] = -1


@T.macro
def turn_pairs(low, high, low_out, high_out, turned_by, place, turn, straight, tile):
    """Turn four pairs of a query or a key, and round them; those of a value are rounded as they are, `straight`."""
    if straight:
        for lane in T.unroll(QUAD):
            low_out[lane] = T.cast(low[lane], tile)
            high_out[lane] = T.cast(high[lane], tile)
    else:
        for lane in T.unroll(QUAD):
            cosine, sine = turned_by[turn, 2 * lane], turned_by[turn, 2 * lane + 1]
            low_out[lane] = T.cast(low[lane] * cosine - high[lane] * sine, tile)
            high_out[lane] = T.cast(high[lane] * cosine + low[lane] * sine, tile)
            if place[turn, 0] < 0:
                low_out[lane] = T.cast(0.0, tile)
                high_out[lane] = T.cast(0.0, tile)


@T.macro
def store(
    q_out, k_pages, v_pages, low, high, place, turn, token, head, quad, high_quad, num_q_heads, num_kv_heads
):  # fmt: skip
    """Put four pairs where they belong."""
    if head < num_q_heads:
        for lane in T.vectorized(QUAD):
            q_out[token, head, quad, lane] = low[lane]
        for lane in T.vectorized(QUAD):
            q_out[token, head, high_quad + quad, lane] = high[lane]
    elif place[turn, 1] >= 0:
        kv_head = T.alloc_var(I32, init=head - num_q_heads)
        if kv_head < num_kv_heads:
            for lane in T.vectorized(QUAD):
                k_pages[place[turn, 1], kv_head, place[turn, 2], quad, lane] = low[lane]
            for lane in T.vectorized(QUAD):
                k_pages[place[turn, 1], kv_head, place[turn, 2], high_quad + quad, lane] = high[lane]
        else:
            kv_head -= num_kv_heads
            for lane in T.vectorized(QUAD):
                v_pages[place[turn, 1], kv_head, place[turn, 2], quad, lane] = low[lane]
            for lane in T.vectorized(QUAD):
                v_pages[place[turn, 1], kv_head, place[turn, 2], high_quad + quad, lane] = high[lane]


def weighted_contract(function: object, dtype: str) -> Definition:
    """A product that ends a block, and leaves what the next one needs of the norm between them."""
    lanes = vector_lanes(dtype)
    return Definition(
        contract="gemm.dense",
        function=function,
        properties={
            "input": dtype,
            "weight": dtype,
            "output": "f32",
            "bias": "absent",
            # The sum leaves weighted, too.
            "residual": "weighted",
        },
        dimensions={"m": Domain(), "n": Domain(SQUARES, UNLIMITED, SQUARES), "k": Domain(lanes, UNLIMITED, lanes)},
        operands={
            "input": Tensor(("m", "k")),
            "weight": Tensor(("n", "k")),
            "residual": Tensor(("m", "n")),
            "norm_weight": Tensor(("n",)),
            "output": Tensor(("m", "n"), "write", same_as="residual"),
            "weighted": Tensor(("m", "n"), "write"),
            "squares": Tensor(("m", part("n", SQUARES)), "write"),
        },
    )


def swiglu_contract(function: object, dtype: str) -> Definition:
    """A gated product of a weighted input."""
    lanes = vector_lanes(dtype)
    return Definition(
        contract="gemm.dense",
        function=function,
        properties={
            "input": f"weighted_{dtype}",
            "weight": dtype,
            "output": dtype,
            "activation": "swiglu",
            "norm": "squares",
        },
        dimensions={
            "m": Domain(),
            "n": Domain(lanes, UNLIMITED // 2, lanes),
            "k": Domain(SUMS * SQUARES, UNLIMITED, SUMS * SQUARES),
        },
        operands={
            "input": Tensor(("m", "k")),
            "squares": Tensor(("m", part("k", SQUARES))),
            "weight": Tensor((Name("n") * 2, "k")),
            "output": Tensor(("m", "n"), "write"),
        },
        attributes={"epsilon": "f32"},
    )


def outputs(head_dim: int) -> Expr:
    """Rows of the weight of all heads."""
    return (Name("num_q_heads") + Name("num_kv_heads") * 2) * head_dim


def projected_contract(function: object, dtype: str, head_dim: int, bias: str) -> Definition:
    """Heads of one token of every sequence, of a weighted input; then as `kv_cache.rope_append`."""
    pool = ("num_pages", "num_kv_heads", PAGE_SIZE, head_dim)
    return Definition(
        contract="kv_cache.rope_append",
        function=function,
        properties={
            "dtype": dtype,
            "pairing": "neox",
            **PAGING,
            "qkv": "projected",
            "norm": "squares",
            "bias": dtype if bias == "present" else "absent",
            "qk_norm": "absent",
        },
        dimensions={
            "tokens": Domain(),
            "batch": Domain(),
            "hidden_size": Domain(SUMS * SQUARES, UNLIMITED, SUMS * SQUARES),
            "num_q_heads": Domain(max=1024),
            "num_kv_heads": Domain(max=1024),
            "head_dim": exactly(head_dim),
            "rotary_dim": exactly(head_dim),
            "page_size": exactly(PAGE_SIZE),
            "num_pages": Domain(),
            "max_pages": Domain(max=2**24),
            "max_positions": Domain(),
        },
        # A token is a sequence's only one.
        conditions=(
            Condition(
                Binary("max", Name("tokens"), Name("batch")) - Binary("min", Name("tokens"), Name("batch")), exactly(0)
            ),
        ),
        operands={
            "input": Tensor(("tokens", "hidden_size")),
            "squares": Tensor(("tokens", part("hidden_size", SQUARES))),
            "weight": Tensor((outputs(head_dim), "hidden_size")),
            "bias": Tensor((outputs(head_dim),)),
            "positions": Tensor(("tokens",), alignment=4),
            "block_table": Tensor(("batch", "max_pages"), alignment=4),
            "rotations": Tensor(("max_positions", head_dim // 2, 2)),
            "q_out": Tensor(("tokens", "num_q_heads", head_dim), "write"),
            "k_pages": Tensor(pool, "write"),
            "v_pages": Tensor(pool, "write"),
            "status": STATUS,
        },
        attributes={"epsilon": "f32"},
        constants={"page_size": PAGE_SIZE, "head_dim": head_dim},
    )
