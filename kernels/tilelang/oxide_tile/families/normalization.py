"""RMSNorm, alone and after a residual addition: `normalization.rms_norm`.

One block a row. The row stays in registers between the sum of squares and the scaling, so device memory is read once;
`hidden_size` is symbolic up to the schedule's capacity, in units of one 16-byte load so that loads stay vectorised. The
weight is read before the kernel ahead has ended.
"""

import tilelang.language as T

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families.common import F32, TILE_DTYPES, part, vector_lanes


def rms_norm(dtype: str, threads: int, capacity: int, output_dtype: str | None = None) -> Definition:
    """`output = input / sqrt(mean(input^2) + epsilon) * weight`, each row on its own.

    Weight and output are of the input's type if no other is given.
    """
    output_dtype = output_dtype or dtype
    tile, out_tile, lanes = TILE_DTYPES[dtype], TILE_DTYPES[output_dtype], vector_lanes(dtype)
    slots = capacity // lanes
    rows, vectors_of_row = T.dynamic("rows"), T.dynamic("vectors_of_row")

    @T.prim_func
    def function(
        input: T.Tensor((rows, vectors_of_row, lanes), tile),
        weight: T.Tensor((vectors_of_row, lanes), out_tile),
        output: T.Tensor((rows, vectors_of_row, lanes), out_tile),
        epsilon: T.float32,
    ):
        with T.Kernel(rows, threads=threads) as row:
            T.pdl_trigger()
            weights = load_weight(weight, vectors_of_row, slots, lanes, out_tile)
            T.pdl_sync()
            value = T.alloc_fragment((slots, lanes), F32)
            for i, j in T.Parallel(slots, lanes):
                value[i, j] = T.if_then_else(i < vectors_of_row, T.cast(input[row, i, j], F32), 0.0)
            scale = inverse_rms(value, vectors_of_row * lanes, epsilon, slots, lanes)
            for i, j in T.Parallel(slots, lanes):
                if i < vectors_of_row:
                    output[row, i, j] = T.cast(value[i, j] * scale[0] * T.cast(weights[i, j], F32), out_tile)

    return definition(function, dtype, output_dtype, "absent", capacity)


def add_rms_norm(dtype: str, threads: int, capacity: int) -> Definition:
    """`residual += input`, rounded to the element type; `output` is the RMSNorm of the new `residual`."""
    tile, lanes = TILE_DTYPES[dtype], vector_lanes(dtype)
    slots = capacity // lanes
    rows, vectors_of_row = T.dynamic("rows"), T.dynamic("vectors_of_row")

    @T.prim_func
    def function(
        input: T.Tensor((rows, vectors_of_row, lanes), tile),
        residual: T.Tensor((rows, vectors_of_row, lanes), tile),
        weight: T.Tensor((vectors_of_row, lanes), tile),
        output: T.Tensor((rows, vectors_of_row, lanes), tile),
        epsilon: T.float32,
    ):
        with T.Kernel(rows, threads=threads) as row:
            T.pdl_trigger()
            weights = load_weight(weight, vectors_of_row, slots, lanes, tile)
            T.pdl_sync()
            value = T.alloc_fragment((slots, lanes), F32)
            total = T.alloc_fragment((slots, lanes), tile)
            for i, j in T.Parallel(slots, lanes):
                total[i, j] = T.if_then_else(
                    i < vectors_of_row,
                    T.cast(T.cast(input[row, i, j], F32) + T.cast(residual[row, i, j], F32), tile),
                    T.cast(0.0, tile),
                )
            for i, j in T.Parallel(slots, lanes):
                if i < vectors_of_row:
                    residual[row, i, j] = total[i, j]
            for i, j in T.Parallel(slots, lanes):
                value[i, j] = T.cast(total[i, j], F32)
            scale = inverse_rms(value, vectors_of_row * lanes, epsilon, slots, lanes)
            for i, j in T.Parallel(slots, lanes):
                if i < vectors_of_row:
                    output[row, i, j] = T.cast(value[i, j] * scale[0] * T.cast(weights[i, j], F32), tile)

    return definition(function, dtype, dtype, "present", capacity)


@T.macro
def load_weight(weight, vectors_of_row, slots, lanes, tile):
    """The weight, which no kernel ahead writes."""
    weights = T.alloc_fragment((slots, lanes), tile)
    for i, j in T.Parallel(slots, lanes):
        weights[i, j] = T.if_then_else(i < vectors_of_row, weight[i, j], T.cast(0.0, tile))
    return weights


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


def definition(function: object, dtype: str, output_dtype: str, residual: str, capacity: int) -> Definition:
    """What both kernels have in common. The contract's rows are the heads of tokens; a layer's norm has one head."""
    lanes = vector_lanes(dtype)
    rows = ("tokens", "heads", "hidden_size")
    return Definition(
        contract="normalization.rms_norm",
        function=function,
        properties={
            "dtype": dtype,
            "weight_dtype": output_dtype,
            "output_dtype": output_dtype,
            "residual": residual,
        },
        dimensions={"tokens": Domain(), "heads": Domain(), "hidden_size": Domain(lanes, capacity, lanes)},
        operands={
            "input": Tensor(rows),
            "weight": Tensor(("hidden_size",)),
            "residual": Tensor(rows, "read_write"),
            "output": Tensor(rows, "write"),
        },
        attributes={"epsilon": "f32"},
        derived={"vectors_of_row": part("hidden_size", lanes), "rows": Name("tokens") * Name("heads")},
    )
