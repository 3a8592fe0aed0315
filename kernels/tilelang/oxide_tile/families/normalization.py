"""RMSNorm, alone and after a residual addition: `normalization.rms_norm`.

One block a row. The row stays in registers between the sum of squares and the scaling, so device memory is read once;
`hidden` is symbolic up to the schedule's capacity, in units of one 16-byte load so that loads stay vectorised.
"""

import tilelang.language as T

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.families.common import F32, TILE_ELEMENTS, part, vector_lanes


def rms_norm(element: str, threads: int, vectors: int) -> Definition:
    """`out = x / sqrt(mean(x^2) + epsilon) * weight`, each row of `x` on its own."""
    tile, lanes = TILE_ELEMENTS[element], vector_lanes(element)
    slots = threads * vectors
    rows, hidden_vectors = T.dynamic("rows"), T.dynamic("hidden_vectors")

    @T.prim_func
    def function(
        x: T.Tensor((rows, hidden_vectors, lanes), tile),
        weight: T.Tensor((hidden_vectors, lanes), tile),
        out: T.Tensor((rows, hidden_vectors, lanes), tile),
        epsilon: T.float32,
    ):
        with T.Kernel(rows, threads=threads) as row:
            value = T.alloc_fragment((slots, lanes), F32)
            for i, j in T.Parallel(slots, lanes):
                value[i, j] = T.if_then_else(i < hidden_vectors, T.cast(x[row, i, j], F32), 0.0)
            scale = inverse_rms(value, hidden_vectors * lanes, epsilon, slots, lanes)
            for i, j in T.Parallel(slots, lanes):
                if i < hidden_vectors:
                    out[row, i, j] = T.cast(value[i, j] * scale[0] * T.cast(weight[i, j], F32), tile)

    return definition(function, element, "none", slots * lanes, {})


def add_rms_norm(element: str, threads: int, vectors: int) -> Definition:
    """`residual += x`, rounded to the element type; then `out` is the RMSNorm of the new `residual`."""
    tile, lanes = TILE_ELEMENTS[element], vector_lanes(element)
    slots = threads * vectors
    rows, hidden_vectors = T.dynamic("rows"), T.dynamic("hidden_vectors")

    @T.prim_func
    def function(
        x: T.Tensor((rows, hidden_vectors, lanes), tile),
        residual: T.Tensor((rows, hidden_vectors, lanes), tile),
        weight: T.Tensor((hidden_vectors, lanes), tile),
        out: T.Tensor((rows, hidden_vectors, lanes), tile),
        epsilon: T.float32,
    ):
        with T.Kernel(rows, threads=threads) as row:
            value = T.alloc_fragment((slots, lanes), F32)
            total = T.alloc_fragment((slots, lanes), tile)
            for i, j in T.Parallel(slots, lanes):
                total[i, j] = T.if_then_else(
                    i < hidden_vectors,
                    T.cast(T.cast(x[row, i, j], F32) + T.cast(residual[row, i, j], F32), tile),
                    T.cast(0.0, tile),
                )
            for i, j in T.Parallel(slots, lanes):
                if i < hidden_vectors:
                    residual[row, i, j] = total[i, j]
            for i, j in T.Parallel(slots, lanes):
                value[i, j] = T.cast(total[i, j], F32)
            scale = inverse_rms(value, hidden_vectors * lanes, epsilon, slots, lanes)
            for i, j in T.Parallel(slots, lanes):
                if i < hidden_vectors:
                    out[row, i, j] = T.cast(value[i, j] * scale[0] * T.cast(weight[i, j], F32), tile)

    return definition(function, element, "add", slots * lanes, {"residual": Tensor(("rows", "hidden"), "read_write")})


@T.macro
def inverse_rms(value, count, epsilon, slots, lanes):
    """`1 / sqrt(mean(value^2) + epsilon)` over a row's `count` elements, the rest being zero."""
    square = T.alloc_fragment((slots, lanes), F32)
    partial = T.alloc_fragment((slots,), F32)
    scale = T.alloc_fragment((1,), F32)
    for i, j in T.Parallel(slots, lanes):
        square[i, j] = value[i, j] * value[i, j]
    T.reduce_sum(square, partial, dim=1)
    T.reduce_sum(partial, scale, dim=0)
    scale[0] = T.rsqrt(scale[0] / T.cast(count, F32) + epsilon)
    return scale


def definition(function: object, element: str, residual: str, capacity: int, more: dict[str, Tensor]) -> Definition:
    """What both kernels have in common."""
    lanes = vector_lanes(element)
    return Definition(
        contract="normalization.rms_norm",
        function=function,
        properties={"element": element, "residual": residual},
        dimensions={"rows": Domain(), "hidden": Domain(lanes, capacity, lanes)},
        operands={
            "x": Tensor(("rows", "hidden")),
            "weight": Tensor(("hidden",)),
            "out": Tensor(("rows", "hidden"), "write"),
            **more,
        },
        attributes={"epsilon": "f32"},
        derived={"hidden_vectors": part("hidden", lanes)},
    )
