"""Choosing tokens from logits: the greedy case of `sampling.sample`.

A row is cut into chunks so that a single row still fills the device; a second kernel picks the best of the chunks'
best. Among equal logits the lowest token wins in both.
"""

import tilelang.language as T

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.expr import Binary, Name, Number
from oxide_tile.families.common import F32, I32, LOGIT_NOT_A_NUMBER, NO_CANDIDATE, U32

NO_TOKEN = 2**31 - 1
# Goes before every token among equals, so that it comes through every choice.
BROKEN = -1
WARP = 32

# Columns of `row_ints`: how one row samples.
ROW_COLUMNS = 8
SEED_LOW, SEED_HIGH, CHOICE, POSITION, TOP_K, SLOT, MASK_ROW, FLAGS = range(ROW_COLUMNS)
# The slot of a row that pads the batch.
NO_SLOT = 0xFFFFFFFF


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
            end = T.if_then_else(row_ints[row, SLOT] == T.Cast(U32, NO_SLOT), 0, vocab_size)
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
            if broken == 1:
                logit = T.infinity(F32)
                token = BROKEN
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
            "last_tokens": Tensor(("max_sequences",), "read_write", alignment=4),
            "tokens": Tensor(("rows",), "write", alignment=4),
            "row_status": Tensor(("rows",), "write", alignment=4),
        },
        derived={"chunks": chunks_of_row},
        constants={"chunk": chunk},
    )


@T.macro
def settle(row_ints, last_tokens, tokens, row_status, row, first, max_sequences):
    """Write what became of a row, by one thread: `first` is its token, `NO_TOKEN` or `BROKEN`."""
    slot = T.alloc_var(U32, init=row_ints[row, SLOT])
    failed = T.alloc_var(I32, init=0)
    if first == NO_TOKEN:
        failed = NO_CANDIDATE
    if first == BROKEN:
        failed = LOGIT_NOT_A_NUMBER
    if slot == T.Cast(U32, NO_SLOT):
        failed = 0
    token = T.alloc_var(U32, init=T.if_then_else(T.Or(first == NO_TOKEN, first == BROKEN), 0, T.cast(first, U32)))
    tokens[row] = token
    row_status[row] = failed
    if slot < T.cast(max_sequences, U32):
        last_tokens[slot] = token


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
