"""Rows of a table by index: `embedding.gather`. One block a row, 16 bytes a thread at a time."""

from dataclasses import replace

import tilelang.language as T

from oxide_tile.definition import UNLIMITED, Definition, Domain, Tensor
from oxide_tile.families.chained import SQUARES
from oxide_tile.families.common import (
    F32,
    I32,
    INDEX_OUT_OF_RANGE,
    STATUS,
    TILE_DTYPES,
    U32,
    overlap_predecessor,
    part,
    report,
    vector_lanes,
)


@T.macro
def find_row(ids, slots, last_tokens, status, token, vocab_size, max_sequences, feeds):
    """The row of a token's id and whether the table has it; with `feeds` that of what its slot sampled last."""
    index = T.alloc_local((1,), U32)
    known = T.alloc_local((1,), "bool")
    index[0] = ids[token]
    if feeds:
        slot = T.alloc_var(I32, init=slots[token])
        if slot >= 0:
            index[0] = T.Cast(U32, 0xFFFFFFFF)
            if slot < max_sequences:
                index[0] = last_tokens[slot]
    known[0] = index[0] < T.cast(vocab_size, U32)
    if not known[0]:
        index[0] = T.Cast(U32, 0)
        if T.get_thread_binding() == 0:
            report(status, INDEX_OUT_OF_RANGE, token)
    return index, known


def gather(dtype: str, threads: int, output_dtype: str | None = None, feedback: str = "absent") -> Definition:
    """`output[t] = table[ids[t]]`; a row whose index is outside the table becomes zeros and is reported.

    The output is of the table's type if no other is given.
    With `feedback` "present" the id of a token whose slot is not negative is `last_tokens[slots[t]]`: what that
    sequence sampled last, which the host has not seen yet. A slot outside `last_tokens` is reported like a bad id.
    """
    tile, lanes = TILE_DTYPES[dtype], vector_lanes(dtype)
    output_dtype = output_dtype or dtype
    out_tile = TILE_DTYPES[output_dtype]
    feeds = feedback == "present"
    tokens, vocab_size, row_vectors = T.dynamic("tokens"), T.dynamic("vocab_size"), T.dynamic("row_vectors")
    max_sequences = T.dynamic("max_sequences")

    @T.prim_func
    def function(
        ids: T.Tensor((tokens,), U32),
        slots: T.Tensor((tokens,), I32),
        last_tokens: T.Tensor((max_sequences,), U32),
        table: T.Tensor((vocab_size, row_vectors, lanes), tile),
        output: T.Tensor((tokens, row_vectors, lanes), out_tile),
        status: T.Tensor((1,), I32),
    ):
        with T.Kernel(tokens, threads=threads) as token:
            thread = T.get_thread_binding()
            index, known = find_row(ids, slots, last_tokens, status, token, vocab_size, max_sequences, feeds)
            row = T.alloc_var(I32, init=T.cast(index[0], I32))
            for step in T.serial(T.ceildiv(row_vectors, threads)):
                i = step * threads + thread
                if i < row_vectors:
                    for j in T.vectorized(lanes):
                        output[token, i, j] = T.cast(
                            T.if_then_else(known[0], table[row, i, j], T.cast(0, tile)), out_tile
                        )

    return contract(function, dtype, output_dtype, feeds, lanes)


def gather_weighted(dtype: str, threads: int) -> Definition:
    """As `gather` with feedback into f32, and what the next product needs of the norm after it.

    That is as `chained_gemm.weighted` leaves it: `weighted = output * norm_weight`, rounded, and the sums of the
    squares of every 8 elements of the output, of either four in turn, then of the two.
    """
    tile, lanes = TILE_DTYPES[dtype], vector_lanes(dtype)
    tokens, vocab_size, row_vectors = T.dynamic("tokens"), T.dynamic("vocab_size"), T.dynamic("row_vectors")
    max_sequences = T.dynamic("max_sequences")

    @T.prim_func
    def function(
        ids: T.Tensor((tokens,), U32),
        slots: T.Tensor((tokens,), I32),
        last_tokens: T.Tensor((max_sequences,), U32),
        table: T.Tensor((vocab_size, row_vectors, lanes), tile),
        norm_weight: T.Tensor((row_vectors, lanes), tile),
        output: T.Tensor((tokens, row_vectors, lanes), F32),
        weighted: T.Tensor((tokens, row_vectors, lanes), tile),
        squares: T.Tensor((tokens, row_vectors), F32),
        status: T.Tensor((1,), I32),
    ):
        with T.Kernel(tokens, threads=threads) as token:
            overlap_predecessor()
            thread = T.get_thread_binding()
            index, known = find_row(ids, slots, last_tokens, status, token, vocab_size, max_sequences, True)
            row = T.alloc_var(I32, init=T.cast(index[0], I32))
            for step in T.serial(T.ceildiv(row_vectors, threads)):
                i = step * threads + thread
                if i < row_vectors:
                    value = T.alloc_local((lanes,), F32)
                    rounded = T.alloc_local((lanes,), tile)
                    half = T.alloc_local((2,), F32)
                    for j in T.vectorized(lanes):
                        value[j] = T.cast(T.if_then_else(known[0], table[row, i, j], T.cast(0, tile)), F32)
                    for j in T.vectorized(lanes):
                        output[token, i, j] = value[j]
                    for j in T.unroll(lanes):
                        rounded[j] = T.cast(value[j] * T.cast(norm_weight[i, j], F32), tile)
                    for j in T.vectorized(lanes):
                        weighted[token, i, j] = rounded[j]
                    for side in T.unroll(2):
                        half[side] = 0.0
                        for j in T.unroll(lanes // 2):
                            half[side] += value[side * (lanes // 2) + j] * value[side * (lanes // 2) + j]
                    squares[token, i] = half[0] + half[1]

    base = contract(function, dtype, "f32", True, SQUARES)
    return replace(
        base,
        properties={**base.properties, "norm": "weighted"},
        operands={
            **base.operands,
            "norm_weight": Tensor(("hidden_size",)),
            "weighted": Tensor(("tokens", "hidden_size"), "write"),
            "squares": Tensor(("tokens", part("hidden_size", SQUARES)), "write"),
        },
    )


def contract(function: object, dtype: str, output_dtype: str, feeds: bool, multiple: int) -> Definition:
    """A gather of rows that are as many elements as some `multiple`."""
    return Definition(
        contract="embedding.gather",
        function=function,
        properties={"table": dtype, "output": output_dtype, **({"feedback": "present"} if feeds else {})},
        dimensions={
            "tokens": Domain(),
            "vocab_size": Domain(),
            "hidden_size": Domain(multiple, UNLIMITED, multiple),
            **({"max_sequences": Domain()} if feeds else {}),
        },
        operands={
            "ids": Tensor(("tokens",), alignment=4),
            "slots": Tensor(("tokens",), alignment=4),
            "last_tokens": Tensor(("max_sequences",), alignment=4),
            "table": Tensor(("vocab_size", "hidden_size")),
            "output": Tensor(("tokens", "hidden_size"), "write"),
            "status": STATUS,
        },
        derived={"row_vectors": part("hidden_size", vector_lanes(dtype))},
    )
