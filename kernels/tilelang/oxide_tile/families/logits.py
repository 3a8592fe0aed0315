"""What the kernels over rows of logits share: how a row is asked for, its order, and exact weights.

Weights are integers, so their sums are exact: no order of addition, and no other row, changes a result.
"""

import tilelang.language as T

from oxide_tile.definition import Tensor
from oxide_tile.families.common import F32, I32, LOGIT_NOT_A_NUMBER, NO_CANDIDATE, U32

# Signed throughout: the compiler does not admit conditions on unsigned integers in nested branches.
I64 = "int64"
WARP = 32
NO_TOKEN = 2**31 - 1
# Goes before every token among equals, so that it comes through every choice.
BROKEN = -1

# Every access is in range by the kernel's own conditions; guards of the compiler's would be most of the instructions.
UNGUARDED = {"tl.disable_safe_memory_legalize": True}

# Columns of `row_ints` and `row_floats`: how one row samples.
ROW_COLUMNS = 8
SEED_LOW, SEED_HIGH, CHOICE, POSITION, TOP_K, SLOT, MASK_ROW, FLAGS = range(ROW_COLUMNS)
TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY = range(6)
# What `settle` writes.
SETTLED = {
    "last_tokens": Tensor(("max_sequences",), "read_write", alignment=4),
    "tokens": Tensor(("rows",), "write", alignment=4),
    "row_status": Tensor(("rows",), "write", alignment=4),
}
# The slot of a row that pads the batch, 0xffffffff as a signed integer.
NO_SLOT = -1


def is_nan_or_infinity(value):
    """By the bits: the compiler takes comparisons to be of numbers. Minus infinity is a logit like any other."""
    bits = T.reinterpret(value, U32)
    exponent = T.Cast(U32, 0x7F800000)
    return T.And((bits & exponent) == exponent, bits != T.Cast(U32, 0xFF800000))


def order(value):
    """An integer that is ordered as the logit is, the same for both zeros."""
    bits = T.reinterpret(T.if_then_else(value == 0.0, T.Cast(F32, 0.0), value), I32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def ordered(key):
    """The logit that `order` gave `key`."""
    return T.reinterpret(key ^ ((key >> 31) & 0x7FFFFFFF), F32)


def once_if(condition):
    """A loop that runs once or not at all, to branch on a condition.

    The compiler cuts an `if` with several statements into as many branches, each with the condition over again; it
    leaves a loop whole.
    """
    return T.serial(T.if_then_else(condition, 1, 0))


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
    best = logits[thread % (threads // WARP)]
    first = tokens[thread % (threads // WARP)]
    for step in T.unroll((threads // WARP).bit_length() - 1):
        other_best = T.shfl_xor(best, 1 << step)
        other_first = T.shfl_xor(first, 1 << step)
        if other_best > best or (other_best == best and other_first < first):
            best = other_best
            first = other_first
    return best, first


@T.macro
def choose_sound(logit: T.Ref, token: T.Ref, broken, thread, threads):
    """As `choose`, of variables; the token of a row that is `broken` in any thread is `BROKEN`."""
    if broken == 1:
        logit = T.infinity(F32)
        token = BROKEN
    best, first = choose(logit, token, thread, threads)
    return best, first


@T.macro
def scan(value, sums, thread):
    """Of 64-bit integers, one a thread of a block of 32 warps: the sum over earlier threads, and over all."""
    lane = thread % WARP
    warp = thread // WARP
    run = T.alloc_var(I64, init=value)
    for step in T.unroll(WARP.bit_length() - 1):
        other = T.shfl_up(run, 1 << step)
        if lane >= 1 << step:
            run += other
    if lane == WARP - 1:
        sums[warp] = run
    T.sync_threads()
    warps = T.alloc_var(I64, init=sums[lane])
    for step in T.unroll(WARP.bit_length() - 1):
        other_warps = T.shfl_up(warps, 1 << step)
        if lane >= 1 << step:
            warps += other_warps
    T.sync_threads()
    total = T.alloc_var(I64, init=T.shfl_sync(warps, WARP - 1))
    before = T.alloc_var(I64, init=T.shfl_sync(warps, T.max(warp - 1, 0)))
    if warp == 0:
        before = 0
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
