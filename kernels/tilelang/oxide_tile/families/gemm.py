"""Matrix products of few rows with fused epilogues: `gemm.dense`, also with `activation.swiglu` of its result.

`output[m, n] = input[m, k] . weight[n, k]^T` for few rows; `prefill_gemm` has the products of many. `dense_small` swaps
the operands, so that weights fill the 64 rows that tensor cores need and a handful of tokens costs no padding;
`dense_split_k` cuts k on top of that. m, n and k are symbolic. Every element of `output` is summed over k in an order
that does not depend on m.
"""

from dataclasses import replace

import tilelang.language as T

from oxide_tile.definition import UNLIMITED, Definition, DefinitionError, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families.common import F32, TILE_DTYPES, overlap_predecessor, vector_lanes

EPILOGUES = ("none", "bias", "residual", "swiglu")


def dense_small(
    dtype: str,
    output_dtype: str,
    epilogue: str,
    block_m: int,
    block_n: int,
    block_k: int,
    stages: int,
    threads: int,
) -> Definition:
    """Tiles of block_n weight rows by block_m tokens, for a number of tokens near block_m."""
    check_epilogue(epilogue)
    tile, out_tile = TILE_DTYPES[dtype], TILE_DTYPES[output_dtype]
    gated = epilogue == "swiglu"
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")

    @T.prim_func
    def function(
        input: T.Tensor((m, k), tile),
        weight: T.Tensor((n * 2 if gated else n, k), tile),
        bias: T.Tensor((n,), tile),
        residual: T.Tensor((m, n), out_tile),
        output: T.Tensor((m, n), out_tile),
    ):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (column, row):
            overlap_predecessor()
            input_tile = T.alloc_shared((block_m, block_k), tile)
            weight_tile = T.alloc_shared((block_n, block_k), tile)
            sum_ = T.alloc_fragment((block_n, block_m), F32)
            T.clear(sum_)
            if gated:
                up_tile = T.alloc_shared((block_n, block_k), tile)
                up = T.alloc_fragment((block_n, block_m), F32)
                T.clear(up)
                for step in T.Pipelined(T.ceildiv(k, block_k), num_stages=stages):
                    T.copy(weight[column * block_n, step * block_k], weight_tile)
                    T.copy(weight[n + column * block_n, step * block_k], up_tile)
                    T.copy(input[row * block_m, step * block_k], input_tile)
                    T.gemm(weight_tile, input_tile, sum_, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    T.gemm(up_tile, input_tile, up, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block_n, block_m):
                    sum_[i, j] = silu(sum_[i, j]) * up[i, j]
            else:
                for step in T.Pipelined(T.ceildiv(k, block_k), num_stages=stages):
                    T.copy(weight[column * block_n, step * block_k], weight_tile)
                    T.copy(input[row * block_m, step * block_k], input_tile)
                    T.gemm(weight_tile, input_tile, sum_, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            if epilogue == "residual":
                # All of it before the first store, which may be to the same memory and would hold up the next load.
                for i, j in T.Parallel(block_n, block_m):
                    if row * block_m + j < m and column * block_n + i < n:
                        sum_[i, j] += T.cast(residual[row * block_m + j, column * block_n + i], F32)
            for i, j in T.Parallel(block_n, block_m):
                if row * block_m + j < m and column * block_n + i < n:
                    if epilogue == "bias":
                        sum_[i, j] += T.cast(bias[column * block_n + i], F32)
                    output[row * block_m + j, column * block_n + i] = T.cast(sum_[i, j], out_tile)

    return definition(function, dtype, output_dtype, epilogue)


def dense_split_k(
    dtype: str,
    output_dtype: str,
    epilogue: str,
    block_m: int,
    block_n: int,
    block_k: int,
    stages: int,
    threads: int,
    splits: int,
) -> Definition:
    """As `dense_small`, k cut into `splits` ranges for weights with too few rows to fill the device.

    A second kernel adds the ranges' sums in their order. Where k is cut does not depend on m.
    """
    check_epilogue(epilogue)
    if epilogue == "swiglu":
        raise DefinitionError("a gate cannot be applied to parts of a sum")
    tile, out_tile = TILE_DTYPES[dtype], TILE_DTYPES[output_dtype]
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")
    columns = 128

    @T.prim_func
    def function(
        input: T.Tensor((m, k), tile),
        weight: T.Tensor((n, k), tile),
        bias: T.Tensor((n,), tile),
        residual: T.Tensor((m, n), out_tile),
        partial: T.Tensor((splits, m, n), F32),
        output: T.Tensor((m, n), out_tile),
    ):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), splits, threads=threads) as (column, row, part):
            overlap_predecessor()
            input_tile = T.alloc_shared((block_m, block_k), tile)
            weight_tile = T.alloc_shared((block_n, block_k), tile)
            sum_ = T.alloc_fragment((block_n, block_m), F32)
            steps = T.ceildiv(k, block_k)
            first = part * T.ceildiv(steps, splits)
            count = T.max(T.min(T.ceildiv(steps, splits), steps - first), 0)
            T.clear(sum_)
            for step in T.Pipelined(count, num_stages=stages):
                T.copy(weight[column * block_n, (first + step) * block_k], weight_tile)
                T.copy(input[row * block_m, (first + step) * block_k], input_tile)
                T.gemm(weight_tile, input_tile, sum_, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_n, block_m):
                if row * block_m + j < m and column * block_n + i < n:
                    partial[part, row * block_m + j, column * block_n + i] = sum_[i, j]
        with T.Kernel(T.ceildiv(n, columns), m, threads=columns) as (column, row):
            at = column * columns + T.get_thread_binding()
            total = T.alloc_var(F32, init=0.0)
            overlap_predecessor()
            if at < n:
                for part in T.serial(splits):
                    total += partial[part, row, at]
                if epilogue == "bias":
                    total += T.cast(bias[at], F32)
                if epilogue == "residual":
                    total += T.cast(residual[row, at], F32)
                output[row, at] = T.cast(total, out_tile)

    base = definition(function, dtype, output_dtype, epilogue)
    return replace(
        base,
        operands={**base.operands, "partial": Tensor((splits, "m", "n"), "read_write", "workspace")},
        constants={"splits": splits},
    )


def silu(gate):
    """`gate * sigmoid(gate)`; exp2 of a scaled argument and the quick division are an instruction or two each."""
    return T.call_extern(F32, "__fdividef", gate, 1.0 + T.exp2(gate * -1.4426950408889634))


def check_epilogue(epilogue: str) -> None:
    """Refuse a variant that no kernel has."""
    if epilogue not in EPILOGUES:
        raise DefinitionError(f"epilogue {epilogue} is none of {', '.join(EPILOGUES)}")


def definition(function: object, dtype: str, output_dtype: str, epilogue: str) -> Definition:
    """What all schedules have in common. Tensor maps need rows that start at multiples of 16 bytes."""
    properties = {"input": dtype, "weight": dtype, "output": output_dtype}
    gated = epilogue == "swiglu"
    if gated:
        properties["activation"] = "swiglu"
    else:
        properties["bias"] = dtype if epilogue == "bias" else "absent"
        properties["residual"] = "present" if epilogue == "residual" else "absent"
    lanes = vector_lanes(dtype)
    return Definition(
        contract="gemm.dense",
        function=function,
        properties=properties,
        dimensions={"m": Domain(), "n": Domain(lanes, UNLIMITED // 2, lanes), "k": Domain(lanes, UNLIMITED, lanes)},
        operands={
            "input": Tensor(("m", "k")),
            "weight": Tensor((Name("n") * 2 if gated else "n", "k")),
            "bias": Tensor(("n",)),
            "residual": Tensor(("m", "n")),
            "output": Tensor(("m", "n"), "write", same_as="residual" if epilogue == "residual" else None),
        },
    )
