"""One token a row, with every parameter of `sampling.sample`, without sorting: thresholds are found by counting.

A row is shared by a cluster of blocks, each with a run of the vocabulary; blocks exchange what they counted through
memory. In order:

1. Bias, mask and penalties make `adjusted`, if the row has any; then comes the greatest logit.
2. A weight is `exp2((l - max) * scale)` in units of 2^-42 with 22 significant bits, an integer. min-p is a least one.
3. top-k, then top-p, look for the last token that they keep: first among bins of equal width in the exponent, then
   by the bits of the logits in one bin, until one value is left. top-k counts tokens, top-p adds up weights.
4. Of the tokens with that value the first by id are kept, as many as still fit.
5. The draw finds the segment of the row, then the token, at which the running sum passes `u` of the whole.
"""

import tilelang.language as T

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.expr import Binary, Name, Number
from oxide_tile.families.common import F32, I32, U32
from oxide_tile.families.logits import (
    BROKEN,
    CHOICE,
    FLAGS,
    FREQUENCY,
    I64,
    MASK_ROW,
    MIN_P,
    NO_SLOT,
    NO_TOKEN,
    POSITION,
    PRESENCE,
    REPETITION,
    ROW_COLUMNS,
    SEED_HIGH,
    SEED_LOW,
    SETTLED,
    SLOT,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    UNGUARDED,
    WARP,
    choose_sound,
    is_nan_or_infinity,
    once_if,
    order,
    ordered,
    scan,
    settle,
)

# A row's bins, one for each thread of a block.
BINS = 1024
WARPS = BINS // WARP
# Loads that a thread has on their way at once.
UNROLL = 8
# A weight of 1 is 2^42: a million of them still fit in 63 bits.
WEIGHT_BITS = 42
# The first bins span 8 exponents, 128 bins each; if the last token kept is not in those, 64 exponents, 16 bins each.
NARROW_PER, WIDE_PER = 7, 4
NARROW_BINS, WIDE_BINS = 2.0**NARROW_PER, 2.0**WIDE_PER
# What is being counted, and what follows from it.
NARROW, WIDE, KEYS, DONE = range(4)
DESCEND, WIDEN, KEEP_ALL = range(3)
# A weight is added in two parts of 12 bits, so that 32 bits hold a million of each.
PART = 12
# The bins, narrow and wide, then 32 bits of keys, 10 at a time.
LEVELS = 6
U64 = "uint64"
LOG2_E = 1.4426950408889634
MAX_F32 = 3.4028234e38
# How much wider than computed the range of a bin's logits is taken to be; a few units of rounding are needed.
SLACK = 2.0**-18


def sample(blocks: int) -> Definition:
    """Steps 2 to 6 of the contract for every row."""
    threads = BINS
    rows, vocab_size, max_sequences = T.dynamic("rows"), T.dynamic("vocab_size"), T.dynamic("max_sequences")
    mask_rows, mask_words, max_adjust = T.dynamic("mask_rows"), T.dynamic("mask_words"), T.dynamic("max_adjust")

    @T.macro
    def wait():
        """Until every block of the row has written what the others read."""
        # The barrier of a cluster alone does not keep the compiler from moving loads and stores across it.
        T.sync_threads()
        if blocks > 1:
            T.cluster_sync()
            T.sync_threads()

    @T.prim_func
    def function(
        logits: T.Tensor((rows, vocab_size), F32),
        row_ints: T.Tensor((rows, ROW_COLUMNS), U32),
        row_floats: T.Tensor((rows, ROW_COLUMNS), F32),
        masks: T.Tensor((mask_rows, mask_words), U32),
        adjust_start: T.Tensor((rows + 1,), I32),
        adjust_tokens: T.Tensor((max_adjust,), U32),
        adjust_values: T.Tensor((max_adjust,), F32),
        history: T.Tensor((max_sequences, vocab_size), U32),
        adjusted: T.Tensor((rows, vocab_size), F32),
        exchange: T.Tensor((rows, 2, blocks, BINS + WARP), I64),
        last_tokens: T.Tensor((max_sequences,), U32),
        tokens: T.Tensor((rows,), U32),
        row_status: T.Tensor((rows,), I32),
    ):
        with T.Kernel(blocks, rows, threads=threads, cluster_dims=blocks) as (block, row):
            # Threads read what others wrote: the compiler must not take the pointers for the only ones.
            T.annotate_restrict_buffers(adjusted, exchange)
            thread = T.get_thread_binding()
            values = T.alloc_local((UNROLL,), F32)
            used = T.alloc_local((UNROLL,), I32)
            bins = T.alloc_shared((2 * BINS,), U32)
            sums = T.alloc_shared((WARPS,), I64)
            found = T.alloc_shared((1,), I32)
            found_sums = T.alloc_shared((3,), I64)

            # What the row asks for, and this block's part of it.
            slot = T.alloc_var(I32, init=T.cast(row_ints[row, SLOT], I32))
            temperature = T.alloc_var(F32, init=row_floats[row, TEMPERATURE])
            mask_row = T.alloc_var(I32, init=T.min(T.cast(row_ints[row, MASK_ROW], I32), mask_rows) - 1)
            penalizes = T.alloc_var(I32, init=0)
            if T.cast(row_ints[row, FLAGS] & T.Cast(U32, 1), I32) == 1 and slot >= 0 and slot < max_sequences:
                penalizes = 1
            first_bias = T.alloc_var(I32, init=T.max(adjust_start[row], 0))
            last_bias = T.alloc_var(I32, init=T.min(adjust_start[row + 1], max_adjust))
            padding = T.alloc_var(I32, init=T.if_then_else(slot == NO_SLOT, 1, 0))
            plain = T.alloc_var(I32, init=0)
            if mask_row < 0 and penalizes == 0 and first_bias >= last_bias:
                plain = 1
            length = T.alloc_var(I32, init=T.if_then_else(padding == 1, 0, T.ceildiv(vocab_size, blocks)))
            begin = T.alloc_var(I32, init=block * length)
            end = T.alloc_var(I32, init=T.min(begin + length, vocab_size))
            turn = T.alloc_var(I32, init=0)

            if plain == 0 and padding == 0:
                for step in T.serial(T.ceildiv(length, threads * UNROLL)):
                    base = T.alloc_var(I32, init=begin + step * threads * UNROLL + thread)
                    load(values, logits, adjusted, row, 1, base, threads, end)
                    for j in T.unroll(UNROLL):
                        used[j] = 0
                        if penalizes == 1:
                            used[j] = T.if_then_else(
                                base + j * threads < end, T.cast(history[slot, base + j * threads], I32), 0
                            )
                    for j in T.unroll(UNROLL):
                        if base + j * threads < end:
                            adjusted[row, base + j * threads] = adjust(
                                values[j], used[j], row_floats, masks, row, base + j * threads, mask_row
                            )
                T.sync_threads()
                for step in T.serial(T.ceildiv(last_bias - first_bias, threads)):
                    entry = T.alloc_var(I32, init=first_bias + step * threads + thread)
                    if entry < last_bias:
                        token = T.alloc_var(I32, init=T.cast(adjust_tokens[entry], I32))
                        leads = T.alloc_var(I32, init=1)
                        if entry > first_bias:
                            if T.cast(adjust_tokens[entry - 1], I32) == token:
                                leads = 0
                        if leads == 1 and token >= begin and token < end:
                            biased = T.alloc_var(F32, init=logits[row, token])
                            for other in T.serial(last_bias - entry):
                                if T.cast(adjust_tokens[entry + other], I32) != token:
                                    T.loop_break()
                                biased = biased + adjust_values[entry + other]
                            times_used = T.alloc_var(I32, init=0)
                            if penalizes == 1:
                                times_used = T.cast(history[slot, token], I32)
                            adjusted[row, token] = adjust(biased, times_used, row_floats, masks, row, token, mask_row)
                T.sync_threads()

            # The greatest logit of the row.
            logit = T.alloc_var(F32, init=-T.infinity(F32))
            best_token = T.alloc_var(I32, init=NO_TOKEN)
            broken = T.alloc_var(I32, init=0)
            for step in T.serial(T.ceildiv(length, threads * UNROLL)):
                base = T.alloc_var(I32, init=begin + step * threads * UNROLL + thread)
                load(values, logits, adjusted, row, plain, base, threads, end)
                for j in T.unroll(UNROLL):
                    if values[j] > logit:
                        logit = values[j]
                        best_token = base + j * threads
                    if is_nan_or_infinity(values[j]):
                        broken = 1
            top, top_token = choose_sound(logit, best_token, broken, thread, threads)
            if thread == 0:
                exchange[row, turn, block, 0] = T.cast(order(top), I64) * 2**32 + (NO_TOKEN - T.cast(top_token, I64))
            wait()
            best = T.alloc_var(I64, init=exchange[row, turn, 0, 0])
            for other in T.serial(blocks - 1):
                best = T.max(best, exchange[row, turn, other + 1, 0])
            turn = 1 - turn
            peak = T.alloc_var(F32, init=ordered(T.cast(best >> 32, I32)))
            first = T.alloc_var(I32, init=T.cast(NO_TOKEN - (best & 0xFFFFFFFF), I32))

            draws = T.alloc_var(I32, init=0)
            if padding == 0 and first != NO_TOKEN and first != BROKEN:
                if temperature > 0.0:
                    draws = 1
            if draws == 0 and block == 0 and thread == 0:
                settle(row_ints, last_tokens, tokens, row_status, row, first, max_sequences)
                if penalizes == 1 and first != NO_TOKEN and first != BROKEN:
                    history[slot, first] = history[slot, first] + T.Cast(U32, 1)

            if draws == 1:
                scale = T.alloc_var(F32, init=T.min(T.ieee_fdiv(T.Cast(F32, LOG2_E), temperature), MAX_F32))
                step_width = T.alloc_var(F32, init=T.min(T.ieee_fdiv(T.Cast(F32, 1.0), scale), 3e35))
                least = T.alloc_var(F32, init=T.max(T.log2(row_floats[row, MIN_P]), -float(WEIGHT_BITS)))
                # The last value kept and how many tokens of it; at first below every logit, so that all are kept.
                limit = T.alloc_var(F32, init=-T.infinity(F32))
                limit_ties = T.alloc_var(I64, init=0)
                top_k = T.alloc_var(I64, init=T.cast(row_ints[row, TOP_K], I64))
                for phase in T.serial(2):
                    stage = T.alloc_var(I32, init=DONE)
                    if phase == 0 and top_k > 0:
                        stage = NARROW
                    if phase == 1 and row_floats[row, TOP_P] < 1.0:
                        stage = NARROW
                    wanted = T.alloc_var(I64, init=top_k)
                    above = T.alloc_var(I64, init=0)
                    # The values and keys in question, and how far keys are shifted to give a bin.
                    high_logit = T.alloc_var(F32, init=peak)
                    low_logit = T.alloc_var(F32, init=-T.infinity(F32))
                    high = T.alloc_var(I32, init=0)
                    low = T.alloc_var(I32, init=0)
                    shift = T.alloc_var(I32, init=0)
                    # The bin that they are in, and the logarithm of bins in an exponent.
                    outer = T.alloc_var(I32, init=0)
                    per = T.alloc_var(I32, init=NARROW_PER)
                    for _ in T.serial(LEVELS):
                        if stage != DONE:
                            bins[thread] = T.Cast(U32, 0)
                            bins[BINS + thread] = T.Cast(U32, 0)
                            T.sync_threads()
                            factor = T.alloc_var(F32, init=T.if_then_else(per == NARROW_PER, -NARROW_BINS, -WIDE_BINS))
                            whole = T.alloc_var(I64, init=0)
                            for step in T.serial(T.ceildiv(length, threads * UNROLL)):
                                base = T.alloc_var(I32, init=begin + step * threads * UNROLL + thread)
                                load(values, logits, adjusted, row, plain, base, threads, end)
                                for j in T.unroll(UNROLL):
                                    value = T.alloc_var(F32, init=values[j])
                                    for _ in once_if(
                                        T.And(T.And(value >= low_logit, value <= high_logit), value > limit)
                                    ):
                                        x = T.alloc_var(F32, init=(value - peak) * scale)
                                        for _ in once_if(x >= least):
                                            if phase == 1 and stage == NARROW:
                                                whole += weight(x)
                                            tally(bins, value, x, 1, phase, stage, factor, per, outer, high, low, shift)
                            if phase == 1 and limit_ties > 0 and block == 0 and thread == 0:
                                tied = T.alloc_var(F32, init=(limit - peak) * scale)
                                whole += weight(tied) * limit_ties
                                tally(bins, limit, tied, limit_ties, phase, stage, factor, per, outer, high, low, shift)
                            T.sync_threads()
                            mine = T.alloc_var(I64, init=T.cast(bins[thread], I64))
                            if phase == 1:
                                mine += T.cast(bins[BINS + thread], I64) << PART
                                mine = mine << T.cast(fine(T.if_then_else(stage == KEYS, outer, thread), per), I64)
                            exchange[row, turn, block, thread] = mine
                            if phase == 1 and stage == NARROW:
                                block_whole = T.alloc_var(I64, init=scan(whole, sums, thread)[1])
                                if thread == 0:
                                    exchange[row, turn, block, BINS] = block_whole
                            wait()
                            mine = exchange[row, turn, 0, thread]
                            for other in T.serial(blocks - 1):
                                mine += exchange[row, turn, other + 1, thread]
                            if phase == 1 and stage == NARROW:
                                whole = exchange[row, turn, 0, BINS]
                                for other in T.serial(blocks - 1):
                                    whole += exchange[row, turn, other + 1, BINS]
                                share_of_whole = T.cast(row_floats[row, TOP_P], "float64") * T.cast(whole, "float64")
                                wanted = T.max(T.min(T.cast(T.ceil(share_of_whole), I64), whole), 1)
                            turn = 1 - turn
                            scanned = scan(mine, sums, thread)
                            before = T.alloc_var(I64, init=scanned[0])
                            total = T.alloc_var(I64, init=scanned[1])
                            action = T.alloc_var(I32, init=DESCEND)
                            if stage == NARROW and total < wanted:
                                action = WIDEN
                            if stage == WIDE and total <= wanted and phase == 0:
                                action = KEEP_ALL
                            if action == WIDEN:
                                stage = WIDE
                                per = WIDE_PER
                            if action == KEEP_ALL:
                                stage = DONE
                            if action == DESCEND:
                                if above + before < wanted and wanted <= above + before + mine:
                                    found[0] = thread
                                    found_sums[0] = before
                                T.sync_threads()
                                digit = T.alloc_var(I32, init=found[0])
                                above += found_sums[0]
                                last_shift = T.alloc_var(I32, init=shift)
                                if stage == KEYS:
                                    # Keys may be more than 2^31 apart.
                                    reach = T.alloc_var(
                                        I64, init=T.cast(high, I64) - (T.cast(digit, I64) << T.cast(shift, I64))
                                    )
                                    high = T.cast(reach, I32)
                                    low = T.cast(
                                        T.max(T.cast(low, I64), reach - (T.Cast(I64, 1) << T.cast(shift, I64)) + 1), I32
                                    )
                                else:
                                    outer = digit
                                    bin_width = T.alloc_var(F32, init=T.abs(step_width / factor))
                                    near = T.cast(digit, F32) * bin_width * (1.0 - SLACK)
                                    far = T.cast(digit + 1, F32) * bin_width * (1.0 + SLACK)
                                    slack = T.alloc_var(F32, init=(T.abs(peak) + far) * SLACK)
                                    high_logit = T.min(peak, peak - near + slack)
                                    low_logit = peak - far - slack
                                    high = order(high_logit)
                                    low = order(low_logit)
                                    last_shift = -1
                                    stage = KEYS
                                high_logit = ordered(high)
                                low_logit = ordered(low)
                                distance = T.alloc_var(I64, init=T.cast(high, I64) - T.cast(low, I64))
                                shift = 0
                                while distance >= BINS:
                                    distance = distance >> 1
                                    shift += 1
                                if last_shift == 0:
                                    stage = DONE
                                    limit = high_logit
                                    each = T.alloc_var(I64, init=1)
                                    if phase == 1:
                                        last_x = T.alloc_var(F32, init=(limit - peak) * scale)
                                        each = weight(last_x)
                                    each = T.max(each, 1)
                                    limit_ties = T.truncdiv(wanted - above + each - 1, each)

                # The draw: what every segment of 1 / 32 of a block keeps, which of them, and which token there.
                segment = T.alloc_var(I32, init=T.ceildiv(length, WARPS))
                start = T.alloc_var(I32, init=begin + thread // WARP * segment)
                stop = T.alloc_var(I32, init=T.min(start + segment, end))
                kept = T.alloc_var(I64, init=0)
                ties = T.alloc_var(I64, init=0)
                tie_x = T.alloc_var(F32, init=(limit - peak) * scale)
                tie_weight = T.alloc_var(I64, init=weight(tie_x))
                for step in T.serial(T.ceildiv(segment, WARP * UNROLL)):
                    base = T.alloc_var(I32, init=start + step * WARP * UNROLL + thread % WARP)
                    load(values, logits, adjusted, row, plain, base, WARP, stop)
                    for j in T.unroll(UNROLL):
                        part, tie = keep(values[j], peak, scale, least, limit)
                        kept += part
                        ties += tie
                for step in T.unroll(WARP.bit_length() - 1):
                    kept += T.shfl_xor(kept, 1 << step)
                    ties += T.shfl_xor(ties, 1 << step)
                if thread % WARP == 0:
                    exchange[row, turn, block, thread // WARP] = kept
                    exchange[row, turn, block, WARPS + thread // WARP] = ties
                if thread == 0:
                    found_sums[2] = uniform_bits(row_ints, row)
                wait()
                kept = 0
                ties = 0
                if thread < blocks * WARPS:
                    kept = exchange[row, turn, thread // WARPS, thread % WARPS]
                    ties = exchange[row, turn, thread // WARPS, WARPS + thread % WARPS]
                ties_before = T.alloc_var(I64, init=scan(ties, sums, thread)[0])
                if ties_before < limit_ties:
                    kept += T.min(limit_ties - ties_before, ties) * tie_weight
                scanned_kept = scan(kept, sums, thread)
                kept_before = T.alloc_var(I64, init=scanned_kept[0])
                kept_total = T.alloc_var(I64, init=scanned_kept[1])
                goal = T.alloc_var(I64, init=share(found_sums[2], kept_total))
                if kept_before <= goal and goal < kept_before + kept:
                    found[0] = thread
                    found_sums[0] = goal - kept_before
                    found_sums[1] = ties_before
                T.sync_threads()
                winner = T.alloc_var(I32, init=found[0])
                if winner // WARPS == block:
                    run = T.alloc_var(I32, init=T.ceildiv(segment, threads))
                    start = begin + winner % WARPS * segment
                    stop = T.min(start + segment, end)
                    start = T.min(start + thread * run, stop)
                    stop = T.min(start + run, stop)
                    kept = 0
                    ties = 0
                    for i in T.serial(stop - start):
                        value = T.alloc_var(F32, init=logit_at(logits, adjusted, row, plain, start + i))
                        part, tie = keep(value, peak, scale, least, limit)
                        kept += part
                        ties += tie
                    tie_number = T.alloc_var(I64, init=scan(ties, sums, thread)[0] + found_sums[1])
                    if tie_number < limit_ties:
                        kept += T.min(limit_ties - tie_number, ties) * tie_weight
                    run_before = T.alloc_var(I64, init=scan(kept, sums, thread)[0])
                    left = T.alloc_var(I64, init=found_sums[0])
                    if run_before <= left and left < run_before + kept:
                        left = left - run_before
                        for i in T.serial(stop - start):
                            value = T.alloc_var(F32, init=logit_at(logits, adjusted, row, plain, start + i))
                            part, tie = keep(value, peak, scale, least, limit)
                            own = T.alloc_var(I64, init=part)
                            tied_here = T.alloc_var(I64, init=tie)
                            if tied_here == 1:
                                if tie_number < limit_ties:
                                    own = tie_weight
                                tie_number += 1
                            if left < own:
                                chosen = T.alloc_var(I32, init=start + i)
                                settle(row_ints, last_tokens, tokens, row_status, row, chosen, max_sequences)
                                if penalizes == 1:
                                    history[slot, chosen] = history[slot, chosen] + T.Cast(U32, 1)
                                T.loop_break()
                            left = left - own

    words = Binary("ceil_div", Name("vocab_size"), Number(32))
    return Definition(
        contract="sampling.sample",
        function=function,
        properties={"logits": "f32", "method": "full"},
        dimensions={
            "rows": Domain(max=65535),
            "vocab_size": Domain(max=2**20),
            "max_sequences": Domain(),
            "mask_rows": Domain(),
            "max_adjust": Domain(),
        },
        operands={
            "logits": Tensor(("rows", "vocab_size"), alignment=4),
            "row_ints": Tensor(("rows", ROW_COLUMNS), alignment=4),
            "row_floats": Tensor(("rows", ROW_COLUMNS), alignment=4),
            "masks": Tensor(("mask_rows", words), alignment=4),
            "adjust_start": Tensor((Name("rows") + 1,), alignment=4),
            "adjust_tokens": Tensor(("max_adjust",), alignment=4),
            "adjust_values": Tensor(("max_adjust",), alignment=4),
            "history": Tensor(("max_sequences", "vocab_size"), "read_write", alignment=4),
            "adjusted": Tensor(("rows", "vocab_size"), "read_write", "workspace"),
            "exchange": Tensor(("rows", 2, blocks, BINS + WARP), "read_write", "workspace"),
            **SETTLED,
        },
        derived={"mask_words": words},
        constants={"blocks_per_row": blocks},
        accumulation="i64",
        pass_configs=UNGUARDED,
    )


@T.macro
def load(values, logits, adjusted, row, plain, base, stride, end):
    """Logits from `base` on, `stride` apart, of the row as it came or as it was adjusted; minus infinity past `end`."""
    if plain == 1:
        for j in T.unroll(UNROLL):
            values[j] = T.if_then_else(base + j * stride < end, logits[row, base + j * stride], -T.infinity(F32))
    else:
        for j in T.unroll(UNROLL):
            values[j] = T.if_then_else(base + j * stride < end, adjusted[row, base + j * stride], -T.infinity(F32))


@T.macro
def logit_at(logits, adjusted, row, plain, token):
    """One logit as `load` takes it."""
    value = T.alloc_var(F32, init=-T.infinity(F32))
    if plain == 1:
        value = logits[row, token]
    if plain == 0:
        value = adjusted[row, token]
    return value


@T.macro
def adjust(logit, used, row_floats, masks, row, token, mask_row):
    """Mask and penalties, each operation rounded as the contract writes it. `used` is the token's history."""
    value = T.alloc_var(F32, init=logit)
    times = T.alloc_var(I32, init=used & 0x7FFFFFFF)
    if mask_row >= 0:
        if T.cast((masks[mask_row, token // 32] >> T.cast(token % 32, U32)) & T.Cast(U32, 1), I32) == 0:
            value = -T.infinity(F32)
    for _ in once_if(used != 0):
        if value > 0.0:
            value = T.ieee_fdiv(value, row_floats[row, REPETITION])
        else:
            value = T.ieee_mul(value, row_floats[row, REPETITION])
    for _ in once_if(times != 0):
        value = T.ieee_sub(value, T.ieee_mul(row_floats[row, FREQUENCY], T.cast(times, F32)))
        value = T.ieee_sub(value, row_floats[row, PRESENCE])
    return value


@T.macro
def weight(x):
    """`2^x` in units of 2^-42, cut to 22 significant bits so that it fits two parts of 12 bits in its bin."""
    w = T.alloc_var(F32, init=T.exp2(x))
    bits = T.alloc_var(U32, init=T.reinterpret(w, U32) & T.Cast(U32, 0xFFFFFFFC))
    return T.cast(T.reinterpret(bits, F32) * (2.0**WEIGHT_BITS), I64)


def fine(bin_index, per):
    """How many low bits are 0 in the weights of a bin: those are at least 2^-(exponent + 2)."""
    return T.max(19 - (bin_index >> per), 0)


@T.macro
def tally(bins, value, x, times, phase, stage, factor, per, outer, high, low, shift):
    """Add a token, or its weight, to its bin, if it is among those in question."""
    place = T.alloc_var(F32, init=x * factor)
    for _ in once_if(place < BINS):
        coarse = T.alloc_var(I32, init=T.cast(place, I32))
        key = T.alloc_var(I32, init=order(value))
        digit = T.alloc_var(I32, init=coarse)
        if stage == KEYS:
            digit = T.cast((T.cast(high, I64) - T.cast(key, I64)) >> T.cast(shift, I64), I32)
        for _ in once_if(T.Or(stage != KEYS, T.And(coarse == outer, T.And(key <= high, key >= low)))):
            if phase == 0:
                T.atomic_add(bins[digit], T.cast(times, U32))
            else:
                parts = T.alloc_var(U32, init=T.cast(weight(x) >> T.cast(fine(coarse, per), I64), U32))
                T.atomic_add(bins[digit], (parts & T.Cast(U32, (1 << PART) - 1)) * T.cast(times, U32))
                T.atomic_add(bins[BINS + digit], (parts >> PART) * T.cast(times, U32))


@T.macro
def keep(value, peak, scale, least, limit):
    """The weight of a token before the limit, and 1 if it is at the limit."""
    part = T.alloc_var(I64, init=0)
    tie = T.alloc_var(I64, init=0)
    x = T.alloc_var(F32, init=(value - peak) * scale)
    for _ in once_if(T.And(value >= limit, x >= least)):
        if value > limit:
            part = weight(x)
        else:
            tie = 1
    return part, tie


@T.macro
def uniform_bits(row_ints, row):
    """The 53 bits of `Draw::uniform`: Philox4x32 with ten rounds."""
    c0 = T.alloc_var(U32, init=row_ints[row, POSITION])
    c1 = T.alloc_var(U32, init=T.Cast(U32, 0))
    c2 = T.alloc_var(U32, init=row_ints[row, CHOICE])
    c3 = T.alloc_var(U32, init=T.Cast(U32, 0))
    k0 = T.alloc_var(U32, init=row_ints[row, SEED_LOW])
    k1 = T.alloc_var(U32, init=row_ints[row, SEED_HIGH])
    for _ in T.serial(10):
        even = T.alloc_var(U64, init=T.cast(c0, U64) * T.Cast(U64, 0xD2511F53))
        odd = T.alloc_var(U64, init=T.cast(c2, U64) * T.Cast(U64, 0xCD9E8D57))
        c0 = T.cast(odd >> 32, U32) ^ c1 ^ k0
        c1 = T.cast(odd, U32)
        c2 = T.cast(even >> 32, U32) ^ c3 ^ k1
        c3 = T.cast(even, U32)
        k0 = k0 + T.Cast(U32, 0x9E3779B9)
        k1 = k1 + T.Cast(U32, 0xBB67AE85)
    return T.cast((T.cast(c0, U64) << 21) | T.cast(c1 >> 11, U64), I64)


@T.macro
def share(bits, total):
    """`floor(bits * total / 2^53)` of `bits` under 2^53, by a product of 128 bits."""
    mask = T.Cast(U64, 0xFFFFFFFF)
    a = T.alloc_var(U64, init=T.cast(bits, U64))
    b = T.alloc_var(U64, init=T.cast(total, U64))
    low = T.alloc_var(U64, init=(a & mask) * (b & mask))
    middle_a = T.alloc_var(U64, init=(a & mask) * (b >> 32))
    middle_b = T.alloc_var(U64, init=(a >> 32) * (b & mask))
    middle = T.alloc_var(U64, init=(low >> 32) + (middle_a & mask) + (middle_b & mask))
    high = T.alloc_var(U64, init=(a >> 32) * (b >> 32) + (middle_a >> 32) + (middle_b >> 32) + (middle >> 32))
    return T.cast((high << 11) | ((middle & mask) >> 21), I64)
