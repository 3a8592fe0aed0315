"""Heads of a decode step of many rows, projected, turned and appended in one launch: `kv_cache.rope_append`.

As `chained_gemm.scaled_projected`, whose tiles of 32 pairs of a head these are, for steps in which norms are kernels of
their own: the input is normalized already. A tile may have more tokens, so that weights are read less often, and the
ring, which then has more turns, is not unrolled.
"""

from dataclasses import replace
from functools import partial

import tilelang.language as T

from oxide_tile.definition import UNLIMITED, Definition, Domain
from oxide_tile.expr import Name
from oxide_tile.families.chained import LANES, QUAD, find_place, outputs, projected_contract, store, turn_pairs
from oxide_tile.families.chained_gemm import HALF, PASS_CONFIGS, check_schedule, load_weights
from oxide_tile.families.common import F32, I32, PAGE_SIZE, TILE_DTYPES, vector_lanes
from oxide_tile.families.ring import WARP, WARPGROUP, fill, multiply_range
from oxide_tile.families.split import ALL_CONSUMERS, PAD, ROWS, share_out


def projected(dtype: str, head_dim: int, bias: str, block_m: int, block_k: int, stages: int) -> Definition:
    """Tiles of block_m tokens, one of every sequence, by 32 pairs of a head.

    Projections are not rounded before they are turned.
    """
    tile = TILE_DTYPES[dtype]
    check_schedule(block_m, block_k, HALF)
    # Quads of half a tile, which are of one token, and how many of a tile's a thread has.
    width = HALF // QUAD
    turns = block_m * width // WARPGROUP
    half, biased = head_dim // 2, bias == "present"
    # Tiles of a head, and quads of half a head.
    groups, high_quad = half // HALF, half // QUAD
    # A macro names what is passed to it: m, like that of other products.
    tokens, k, rows, quads = (T.dynamic(n) for n in ("m", "k", "rows", "quads"))
    batch, max_pages, num_pages = (T.dynamic(name) for name in ("batch", "max_pages", "num_pages"))
    max_positions, num_q_heads, num_kv_heads = (
        T.dynamic(name) for name in ("max_positions", "num_q_heads", "num_kv_heads")
    )

    @T.prim_func
    def function(
        input: T.Tensor((tokens, k), tile),
        weight: T.Tensor((rows, k), tile),
        bias: T.Tensor((quads, QUAD), tile),
        positions: T.Tensor((tokens,), I32),
        block_table: T.Tensor((batch, max_pages), I32),
        rotations: T.Tensor((max_positions, high_quad, LANES), F32),
        q_out: T.Tensor((tokens, num_q_heads, head_dim // QUAD, QUAD), tile),
        k_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim // QUAD, QUAD), tile),
        v_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim // QUAD, QUAD), tile),
        status: T.Tensor((1,), I32),
    ):
        with T.Kernel(rows // ROWS, T.ceildiv(tokens, block_m), threads=WARPGROUP + WARP) as (block, row):
            weights = T.alloc_shared((stages, ROWS, block_k), tile)
            inputs = T.alloc_shared((stages, block_m, block_k), tile)
            sums = T.alloc_shared((1, block_m, ROWS + PAD), F32)
            full, free = T.alloc_barrier([1] * stages), T.alloc_barrier([1] * stages)
            sum_ = T.alloc_fragment((ROWS, block_m), F32)
            thread = T.get_thread_binding()
            T.pdl_trigger()
            count = T.alloc_var(I32, init=T.ceildiv(k, block_k))
            head = T.alloc_var(I32, init=block // groups)
            if thread >= WARPGROUP:
                low_row = T.alloc_var(I32, init=head * head_dim + block % groups * HALF)
                high_row = T.alloc_var(I32, init=low_row + half)
                fill(
                    partial(load_weights, weight, weights, full, low_row, high_row, 2, block_k), input, inputs, full,
                    free, row, 0, 0, count, block_m, block_k, stages, WARPGROUP,
                )  # fmt: skip
            else:
                side = T.alloc_local((2, QUAD), tile)
                turned_by = T.alloc_local((turns, LANES), F32)
                place = T.alloc_local((turns, 3), I32)
                quad = thread % width
                # Of half a head, this thread's quad.
                at = T.alloc_var(I32, init=block % groups * width + quad)
                if biased:
                    for side_of in T.unroll(2):
                        for lane in T.vectorized(QUAD):
                            side[side_of, lane] = bias[head * (head_dim // QUAD) + side_of * high_quad + at, lane]
                T.pdl_sync()
                for turn in T.unroll(turns):
                    token = turn * (WARPGROUP // width) + thread // width
                    if row * block_m + token < tokens:
                        find_place(
                            status, positions, block_table, place, turn, row * block_m + token,
                            block == 0 and quad == 0, max_positions, max_pages, num_pages,
                        )  # fmt: skip
                        for lane in T.vectorized(LANES):
                            turned_by[turn, lane] = rotations[T.max(place[turn, 0], 0), at, lane]
                multiply_range(
                    weights, inputs, full, free, sum_, count, ROWS, block_m, block_k, stages,
                    ROWS * block_m // WARPGROUP,
                )  # fmt: skip
                share_out(sum_, sums, sums, 0, 1, 2, block_m)
                T.sync_threads(ALL_CONSUMERS, WARPGROUP)
                for turn in T.unroll(turns):
                    token = turn * (WARPGROUP // width) + thread // width
                    low = T.alloc_local((QUAD,), F32)
                    high = T.alloc_local((QUAD,), F32)
                    low_out = T.alloc_local((QUAD,), tile)
                    high_out = T.alloc_local((QUAD,), tile)
                    if row * block_m + token < tokens:
                        for lane in T.vectorized(QUAD):
                            low[lane] = sums[0, token, quad * QUAD + lane]
                        for lane in T.vectorized(QUAD):
                            high[lane] = sums[0, token, HALF + quad * QUAD + lane]
                        if biased:
                            for lane in T.unroll(QUAD):
                                low[lane] += T.cast(side[0, lane], F32)
                                high[lane] += T.cast(side[1, lane], F32)
                        turn_pairs(
                            low, high, low_out, high_out, turned_by, place, turn,
                            head >= num_q_heads + num_kv_heads, tile,
                        )  # fmt: skip
                        store(
                            q_out, k_pages, v_pages, low_out, high_out, place, turn, row * block_m + token,
                            head, at, high_quad, num_q_heads, num_kv_heads,
                        )  # fmt: skip

    return replace(
        contract(function, dtype, head_dim, bias),
        derived={
            "m": Name("tokens"),
            "rows": outputs(head_dim),
            "quads": outputs(head_dim) // QUAD,
            "k": Name("hidden_size"),
        },
        # The sums lie over the ring.
        pass_configs={**PASS_CONFIGS, "tl.enable_aggressive_shared_memory_merge": True},
    )


def contract(function: object, dtype: str, head_dim: int, bias: str) -> Definition:
    """That of `scaled_projected`, of an input that is normalized. Tensor maps need rows of whole loads."""
    scaled = projected_contract(function, dtype, head_dim, bias)
    lanes = vector_lanes(dtype)
    return replace(
        scaled,
        properties={**scaled.properties, "norm": "absent"},
        dimensions={**scaled.dimensions, "hidden_size": Domain(lanes, UNLIMITED, lanes)},
        operands={name: tensor for name, tensor in scaled.operands.items() if name != "squares"},
        attributes={},
    )
