"""Choosing tokens from logits: the greedy case of `sampling.sample`.

A row is cut into chunks so that a single row still fills the device; a second kernel picks the best of the chunks'
best. Among equal logits the lowest token wins in both.
"""

import tilelang.language as T

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.expr import Binary, Name, Number
from oxide_tile.families.common import F32, I32, U32
from oxide_tile.families.logits import (
    NO_SLOT,
    NO_TOKEN,
    ROW_COLUMNS,
    SETTLED,
    SLOT,
    choose,
    choose_sound,
    is_nan_or_infinity,
    settle,
)


def argmax(threads: int, chunk: int) -> Definition:
    """The token of the highest logit of each row; rows that have none, or a NaN or infinity, are reported."""
    rows, vocab_size, chunks = T.dynamic("rows"), T.dynamic("vocab_size"), T.dynamic("chunks")
    max_sequences = T.dynamic("max_sequences")

    @T.prim_func
    def function(
        logits: T.Tensor((rows, vocab_size), F32),
        row_ints: T.Tensor((rows, ROW_COLUMNS), U32),
        best_logits: T.Tensor((rows, chunks), F32),
        best_tokens: T.Tensor((rows, chunks), I32),
        last_tokens: T.Tensor((max_sequences,), U32),
        tokens: T.Tensor((rows,), U32),
        row_status: T.Tensor((rows,), I32),
    ):
        with T.Kernel(chunks, rows, threads=threads) as (piece, row):
            thread = T.get_thread_binding()
            slot = T.alloc_var(I32, init=T.cast(row_ints[row, SLOT], I32))
            end = T.if_then_else(slot == NO_SLOT, 0, vocab_size)
            logit = T.alloc_var(F32, init=-T.infinity(F32))
            token = T.alloc_var(I32, init=NO_TOKEN)
            broken = T.alloc_var(I32, init=0)
            for step in T.serial(chunk // threads):
                at = piece * chunk + step * threads + thread
                if at < end:
                    value = T.alloc_var(F32, init=logits[row, at])
                    if value > logit:
                        logit = value
                        token = at
                    if is_nan_or_infinity(value):
                        broken = 1
            best, first = choose_sound(logit, token, broken, thread, threads)
            if thread == 0:
                best_logits[row, piece] = best
                best_tokens[row, piece] = first
        with T.Kernel(rows, threads=threads) as row:
            thread = T.get_thread_binding()
            logit = T.alloc_var(F32, init=-T.infinity(F32))
            token = T.alloc_var(I32, init=NO_TOKEN)
            for step in T.serial(T.ceildiv(chunks, threads)):
                piece = step * threads + thread
                if piece < chunks:
                    value = T.alloc_var(F32, init=best_logits[row, piece])
                    if value > logit:
                        logit = value
                        token = best_tokens[row, piece]
            best, first = choose(logit, token, thread, threads)
            if thread == 0:
                settle(row_ints, last_tokens, tokens, row_status, row, first, max_sequences)

    chunks_of_row = Binary("ceil_div", Name("vocab_size"), Number(chunk))
    return Definition(
        contract="sampling.sample",
        function=function,
        properties={"logits": "f32", "method": "greedy"},
        dimensions={"rows": Domain(max=65535), "vocab_size": Domain(max=2**30), "max_sequences": Domain()},
        operands={
            "logits": Tensor(("rows", "vocab_size"), alignment=4),
            "row_ints": Tensor(("rows", ROW_COLUMNS), alignment=4),
            "best_logits": Tensor(("rows", chunks_of_row), "read_write", "workspace"),
            "best_tokens": Tensor(("rows", chunks_of_row), "read_write", "workspace"),
            **SETTLED,
        },
        derived={"chunks": chunks_of_row},
        constants={"chunk": chunk},
    )
