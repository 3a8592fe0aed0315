"""What the kernels over rows of logits share: how a row is asked for, its order, and exact weights.

Weights are integers, so their sums are exact: no order of addition, and no other row, changes a result.
"""

import tilelang.language as T

from oxide_tile.families.common import F32, I32, LOGIT_NOT_A_NUMBER, NO_CANDIDATE, U32

# Signed throughout: the compiler does not admit conditions on unsigned integers in nested branches.
I64 = "int64"
WARP = 32
NO_TOKEN = 2**31 - 1
# Goes before every token among equals, so that it comes through every choice.
BROKEN = -1

# Columns of `row_ints` and `row_floats`: how one row samples.
ROW_COLUMNS = 8
SEED_LOW, SEED_HIGH, CHOICE, POSITION, TOP_K, SLOT, MASK_ROW, FLAGS = range(ROW_COLUMNS)
TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY = range(6)
# The slot of a row that pads the batch, 0xffffffff as a signed integer.
NO_SLOT = -1


def is_nan_or_infinity(value):
    """By the bits: the compiler takes comparisons to be of numbers. Minus infinity is a logit like any other."""
    bits = T.reinterpret(value, U32)
    exponent = T.Cast(U32, 0x7F800000)
    return T.And((bits & exponent) == exponent, bits != T.Cast(U32, 0xFF800000))


@T.macro
def order(value):
    """An integer that is ordered as the logit is, the same for both zeros."""
    bits = T.alloc_var(I32, init=T.reinterpret(value, I32))
    if value == 0.0:
        bits = 0
    if bits < 0:
        bits = bits ^ 0x7FFFFFFF
    return bits


@T.macro
def ordered(key):
    """The logit that `order` gave `key`."""
    bits = T.alloc_var(I32, init=key)
    if bits < 0:
        bits = bits ^ 0x7FFFFFFF
    return T.reinterpret(bits, F32)


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


@T.macro
def scan(value, sums, thread, threads):
    """Of 64-bit integers, one a thread: the sum over earlier threads, and over all. `sums` has one place a warp."""
    run = T.alloc_var(I64, init=value)
    before = T.alloc_var(I64, init=0)
    total = T.alloc_var(I64, init=0)
    for step in T.unroll(WARP.bit_length() - 1):
        other = T.shfl_up(run, 1 << step)
        if thread % WARP >= 1 << step:
            run += other
    if thread % WARP == WARP - 1:
        sums[thread // WARP] = run
    T.sync_threads()
    for warp in T.unroll(threads // WARP):
        if warp < thread // WARP:
            before += sums[warp]
        total += sums[warp]
    T.sync_threads()
    before += run - value
    return before, total


@T.macro
def settle(row_ints, last_tokens, tokens, row_status, row, first, max_sequences):
    """Write what became of a row, by one thread: `first` is its token, `NO_TOKEN` or `BROKEN`."""
    slot = T.alloc_var(I32, init=T.cast(row_ints[row, SLOT], I32))
    failed = T.alloc_var(I32, init=0)
    if first == NO_TOKEN:
        failed = NO_CANDIDATE
    if first == BROKEN:
        failed = LOGIT_NOT_A_NUMBER
    if slot == NO_SLOT:
        failed = 0
    token = T.alloc_var(U32, init=T.if_then_else(T.Or(first == NO_TOKEN, first == BROKEN), 0, T.cast(first, U32)))
    tokens[row] = token
    row_status[row] = failed
    if slot >= 0 and slot < max_sequences:
        last_tokens[slot] = token
