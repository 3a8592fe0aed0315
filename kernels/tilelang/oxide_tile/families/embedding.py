"""Rows of a table by index: `embedding.gather`. One block a row, 16 bytes a thread at a time."""

import tilelang.language as T

from oxide_tile.definition import UNLIMITED, Definition, Domain, Tensor
from oxide_tile.families.common import I32, INDEX_OUT_OF_RANGE, STATUS, TILE_DTYPES, U32, part, report, vector_lanes


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
            index = T.alloc_var(U32, init=ids[token])
            if feeds:
                slot = T.alloc_var(I32, init=slots[token])
                if slot >= 0:
                    index = T.Cast(U32, 0xFFFFFFFF)
                    if slot < max_sequences:
                        index = last_tokens[slot]
            known = index < T.cast(vocab_size, U32)
            row = T.if_then_else(known, T.cast(index, I32), 0)
            if thread == 0 and not known:
                report(status, INDEX_OUT_OF_RANGE, token)
            for step in T.serial(T.ceildiv(row_vectors, threads)):
                i = step * threads + thread
                if i < row_vectors:
                    for j in T.vectorized(lanes):
                        output[token, i, j] = T.cast(T.if_then_else(known, table[row, i, j], T.cast(0, tile)), out_tile)

    return Definition(
        contract="embedding.gather",
        function=function,
        properties={"table": dtype, "output": output_dtype, **({"feedback": feedback} if feeds else {})},
        dimensions={
            "tokens": Domain(),
            "vocab_size": Domain(),
            "hidden_size": Domain(lanes, UNLIMITED, lanes),
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
        derived={"row_vectors": part("hidden_size", lanes)},
    )
