"""Choosing tokens from logits: the greedy case of `sampling.sample`.

A row is cut into chunks so that a single row still fills the device; a second kernel picks the best of the chunks'
best. Among equal logits the lowest token wins in both.
"""

import tilelang.language as T

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.expr import Binary, Name, Number
from oxide_tile.families.common import F32, I32, LOGIT_NOT_A_NUMBER, NO_CANDIDATE, STATUS, U32, report

NO_TOKEN = 2**31 - 1
WARP = 32


def argmax(threads: int, chunk: int) -> Definition:
    """The token of the highest logit of each row; rows that have none, or a NaN or infinity, are reported."""
    rows, vocab_size, chunks = T.dynamic("rows"), T.dynamic("vocab_size"), T.dynamic("chunks")

    @T.prim_func
    def function(
        logits: T.Tensor((rows, vocab_size), F32),
        best_logits: T.Tensor((rows, chunks), F32),
        best_tokens: T.Tensor((rows, chunks), I32),
        tokens: T.Tensor((rows,), U32),
        status: T.Tensor((1,), I32),
    ):
        with T.Kernel(chunks, rows, threads=threads) as (piece, row):
            thread = T.get_thread_binding()
            logit = T.alloc_var(F32, init=-T.infinity(F32))
            token = T.alloc_var(I32, init=NO_TOKEN)
            broken = T.alloc_var(I32, init=0)
            for step in T.serial(chunk // threads):
                at = piece * chunk + step * threads + thread
                if at < vocab_size:
                    value = logits[row, at]
                    if value > logit:
                        logit = value
                        token = at
                    if is_nan_or_infinity(value):
                        broken = 1
            if broken == 1:
                report(status, LOGIT_NOT_A_NUMBER, row)
            best, first = choose(logit, token, thread, threads)
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
                    value = best_logits[row, piece]
                    if value > logit:
                        logit = value
                        token = best_tokens[row, piece]
            best, first = choose(logit, token, thread, threads)
            if thread == 0:
                if first == NO_TOKEN:
                    report(status, NO_CANDIDATE, row)
                tokens[row] = T.cast(T.if_then_else(first == NO_TOKEN, 0, first), U32)

    chunks_of_row = Binary("ceil_div", Name("vocab_size"), Number(chunk))
    return Definition(
        contract="sampling.sample",
        function=function,
        properties={"logits": "f32", "method": "greedy"},
        dimensions={"rows": Domain(max=65535), "vocab_size": Domain(max=2**30)},
        operands={
            "logits": Tensor(("rows", "vocab_size"), alignment=4),
            "best_logits": Tensor(("rows", chunks_of_row), "read_write", "workspace"),
            "best_tokens": Tensor(("rows", chunks_of_row), "read_write", "workspace"),
            "tokens": Tensor(("rows",), "write", alignment=4),
            "status": STATUS,
        },
        derived={"chunks": chunks_of_row},
        constants={"chunk": chunk},
    )


def is_nan_or_infinity(value):
    """By the bits: the compiler takes comparisons to be of numbers. Minus infinity is a logit like any other."""
    bits = T.reinterpret(value, U32)
    exponent = T.Cast(U32, 0x7F800000)
    return T.And((bits & exponent) == exponent, bits != T.Cast(U32, 0xFF800000))


@T.macro
def choose(logit, token, thread, threads):
    """The highest logit of the block and the lowest token that has it, the same in every thread."""
    logits = T.alloc_shared((threads // WARP,), F32)
    tokens = T.alloc_shared((threads // WARP,), I32)
    best = T.alloc_var(F32, init=logit)
    first = T.alloc_var(I32, init=token)
    for step in T.unroll(WARP.bit_length() - 1):
        other = T.shfl_xor(best, 1 << step)
        other_token = T.shfl_xor(first, 1 << step)
        if other > best or (other == best and other_token < first):
            best = other
            first = other_token
    if thread % WARP == 0:
        logits[thread // WARP] = best
        tokens[thread // WARP] = first
    T.sync_threads()
    for warp in T.serial(threads // WARP):
        if logits[warp] > best or (logits[warp] == best and tokens[warp] < first):
            best = logits[warp]
            first = tokens[warp]
    return best, first
