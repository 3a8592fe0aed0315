"""The gate of a feed-forward layer, element by element: `activation.swiglu`."""

import tilelang.language as T

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.families.common import F32, TILE_DTYPES, overlap_predecessor, part, vector_lanes


def swiglu(dtype: str, threads: int, vectors: int) -> Definition:
    """A block has `threads * vectors` loads of each operand; a thread has all of its own in flight."""
    tile, lanes = TILE_DTYPES[dtype], vector_lanes(dtype)
    rows, loads = T.dynamic("rows"), T.dynamic("loads")
    block = threads * vectors

    @T.prim_func
    def function(
        gate: T.Tensor((rows, loads, lanes), tile),
        up: T.Tensor((rows, loads, lanes), tile),
        output: T.Tensor((rows, loads, lanes), tile),
    ):
        with T.Kernel(T.ceildiv(loads, block), rows, threads=threads) as (first, row):
            overlap_predecessor()
            gates = T.alloc_local((vectors, lanes), tile)
            ups = T.alloc_local((vectors, lanes), tile)
            for i in T.unroll(vectors):
                at = first * block + i * threads + T.get_thread_binding()
                if at < loads:
                    for j in T.vectorized(lanes):
                        gates[i, j] = gate[row, at, j]
                    for j in T.vectorized(lanes):
                        ups[i, j] = up[row, at, j]
            for i in T.unroll(vectors):
                at = first * block + i * threads + T.get_thread_binding()
                if at < loads:
                    for j in T.unroll(lanes):
                        x = T.alloc_var(F32, init=T.cast(gates[i, j], F32))
                        ups[i, j] = T.cast(x / (1.0 + T.exp(-x)) * T.cast(ups[i, j], F32), tile)
                    for j in T.vectorized(lanes):
                        output[row, at, j] = ups[i, j]

    shape = ("rows", "size")
    return Definition(
        contract="activation.swiglu",
        function=function,
        properties={"dtype": dtype},
        # Rows are the grid's second axis.
        dimensions={"rows": Domain(max=65535), "size": Domain(min=lanes, multiple_of=lanes)},
        operands={"gate": Tensor(shape), "up": Tensor(shape), "output": Tensor(shape, "write")},
        derived={"loads": part("size", lanes)},
    )
