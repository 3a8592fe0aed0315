"""Dense matrix products `out[m, n] = x[m, k] . weight[n, k]^T` with fused epilogues: `gemm.dense`.

`dense` tiles rows of `x` for prefill; `dense_small` swaps the operands, so that weights fill the 64 rows that tensor
cores need and a handful of tokens costs no padding. m, n and k are symbolic. Every element of `out` is summed over k in
ascending order by one block, whatever m is.
"""

import tilelang.language as T

from oxide_tile.definition import UNLIMITED, Definition, DefinitionError, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families.common import F32, TILE_ELEMENTS

EPILOGUES = ("none", "bias", "residual", "swiglu")


def dense(
    element: str,
    out_element: str,
    epilogue: str,
    block_m: int,
    block_n: int,
    block_k: int,
    stages: int,
    threads: int,
    panel: int,
) -> Definition:
    """Tiles of block_m rows by block_n columns; `panel` tile columns are walked before the next tile row, for L2."""
    check_epilogue(epilogue)
    tile, out_tile = TILE_ELEMENTS[element], TILE_ELEMENTS[out_element]
    gated = epilogue == "swiglu"
    columns = block_n // 2 if gated else block_n
    through_shared = out_element == element
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")

    @T.prim_func
    def function(
        x: T.Tensor((m, k), tile),
        weight: T.Tensor((n * 2 if gated else n, k), tile),
        bias: T.Tensor((n,), tile),
        residual: T.Tensor((m, n), tile),
        out: T.Tensor((m, n), out_tile),
    ):
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(m, block_m), threads=threads) as (column, row):
            x_tile = T.alloc_shared((block_m, block_k), tile)
            weight_tile = T.alloc_shared((columns, block_k), tile)
            sum_ = T.alloc_fragment((block_m, columns), F32)
            T.use_swizzle(panel_size=panel, enable=panel > 0)
            T.clear(sum_)
            if gated:
                up_tile = T.alloc_shared((columns, block_k), tile)
                up = T.alloc_fragment((block_m, columns), F32)
                T.clear(up)
                for step in T.Pipelined(T.ceildiv(k, block_k), num_stages=stages):
                    T.copy(x[row * block_m, step * block_k], x_tile)
                    T.copy(weight[column * columns, step * block_k], weight_tile)
                    T.copy(weight[n + column * columns, step * block_k], up_tile)
                    T.gemm(x_tile, weight_tile, sum_, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    T.gemm(x_tile, up_tile, up, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block_m, columns):
                    sum_[i, j] = silu(sum_[i, j]) * up[i, j]
            else:
                for step in T.Pipelined(T.ceildiv(k, block_k), num_stages=stages):
                    T.copy(x[row * block_m, step * block_k], x_tile)
                    T.copy(weight[column * columns, step * block_k], weight_tile)
                    T.gemm(x_tile, weight_tile, sum_, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            if epilogue == "bias":
                for i, j in T.Parallel(block_m, columns):
                    if column * columns + j < n:
                        sum_[i, j] += T.cast(bias[column * columns + j], F32)
            if epilogue == "residual":
                for i, j in T.Parallel(block_m, columns):
                    if row * block_m + i < m and column * columns + j < n:
                        sum_[i, j] += T.cast(residual[row * block_m + i, column * columns + j], F32)
            if through_shared:
                out_shared = T.alloc_shared((block_m, columns), out_tile)
                T.copy(sum_, out_shared)
                T.copy(out_shared, out[row * block_m, column * columns])
            else:
                for i, j in T.Parallel(block_m, columns):
                    if row * block_m + i < m and column * columns + j < n:
                        out[row * block_m + i, column * columns + j] = sum_[i, j]

    return definition(function, element, out_element, epilogue)


def dense_small(
    element: str,
    out_element: str,
    epilogue: str,
    block_m: int,
    block_n: int,
    block_k: int,
    stages: int,
    threads: int,
) -> Definition:
    """Tiles of block_n weight rows by block_m tokens, for a number of tokens near block_m."""
    check_epilogue(epilogue)
    tile, out_tile = TILE_ELEMENTS[element], TILE_ELEMENTS[out_element]
    gated = epilogue == "swiglu"
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")

    @T.prim_func
    def function(
        x: T.Tensor((m, k), tile),
        weight: T.Tensor((n * 2 if gated else n, k), tile),
        bias: T.Tensor((n,), tile),
        residual: T.Tensor((m, n), tile),
        out: T.Tensor((m, n), out_tile),
    ):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (column, row):
            x_tile = T.alloc_shared((block_m, block_k), tile)
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
                    T.copy(x[row * block_m, step * block_k], x_tile)
                    T.gemm(weight_tile, x_tile, sum_, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    T.gemm(up_tile, x_tile, up, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block_n, block_m):
                    sum_[i, j] = silu(sum_[i, j]) * up[i, j]
            else:
                for step in T.Pipelined(T.ceildiv(k, block_k), num_stages=stages):
                    T.copy(weight[column * block_n, step * block_k], weight_tile)
                    T.copy(x[row * block_m, step * block_k], x_tile)
                    T.gemm(weight_tile, x_tile, sum_, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_n, block_m):
                if row * block_m + j < m and column * block_n + i < n:
                    if epilogue == "bias":
                        sum_[i, j] += T.cast(bias[column * block_n + i], F32)
                    if epilogue == "residual":
                        sum_[i, j] += T.cast(residual[row * block_m + j, column * block_n + i], F32)
                    out[row * block_m + j, column * block_n + i] = T.cast(sum_[i, j], out_tile)

    return definition(function, element, out_element, epilogue)


def silu(gate):
    """`gate * sigmoid(gate)`; exp2 of a scaled argument is one instruction."""
    return gate / (1.0 + T.exp2(gate * -1.4426950408889634))


def check_epilogue(epilogue: str) -> None:
    """Refuse a variant that no kernel has."""
    if epilogue not in EPILOGUES:
        raise DefinitionError(f"epilogue {epilogue} is none of {', '.join(EPILOGUES)}")


def definition(function: object, element: str, out_element: str, epilogue: str) -> Definition:
    """What all schedules have in common. Tensor maps need rows that start at multiples of 16 bytes."""
    more = {
        "none": {},
        "bias": {"bias": Tensor(("n",))},
        "residual": {"residual": Tensor(("m", "n"))},
        "swiglu": {},
    }[epilogue]
    aliases = "residual" if epilogue == "residual" else None
    weight_rows = Name("n") * 2 if epilogue == "swiglu" else Name("n")
    lanes = 8
    return Definition(
        contract="gemm.dense",
        function=function,
        properties={"element": element, "out_element": out_element, "epilogue": epilogue},
        dimensions={"m": Domain(), "n": Domain(lanes, UNLIMITED // 2, lanes), "k": Domain(lanes, UNLIMITED, lanes)},
        operands={
            "x": Tensor(("m", "k")),
            "weight": Tensor((weight_rows, "k")),
            **more,
            "out": Tensor(("m", "n"), "write", same_as=aliases),
        },
    )
