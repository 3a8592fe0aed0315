"""Log-probabilities under raw logits: `sampling.log_probabilities`.

A row is shared by a cluster of blocks that exchange what they counted through memory. Exponentials are added as
integers in units of 2^-42. The most probable tokens are found without sorting the row: tokens are counted by their
distance from the greatest logit in bins, then by value and id together within one bin, 10 bits at a time, until the
least of the wanted ones is known; those are then put in order by comparing each with each.
"""

import tilelang.language as T

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.families.common import F32, I32, INDEX_OUT_OF_RANGE, LOGIT_NOT_A_NUMBER, NO_CANDIDATE, U32
from oxide_tile.families.logits import (
    BROKEN,
    I64,
    NO_TOKEN,
    UNGUARDED,
    WARP,
    choose_sound,
    is_nan_or_infinity,
    once_if,
    order,
    ordered,
    scan,
)

# How many of the most probable tokens are reported.
TOP = 32
BINS = 1024
BIN_BITS = 10
WARPS = BINS // WARP
UNROLL = 8
WEIGHT_BITS = 42
LOG2_E = 1.4426950408889634
# Bins of a 32nd of a nat; the last one has all that is further away.
BINS_PER_NAT = 32.0
SLACK = 2.0**-18
# A place in the one order of tokens: the value's key, then the id, the greatest first.
ID_BITS = 20
# The bins, then 32 + 20 bits of places.
LEVELS = 7


def log_probabilities(blocks: int) -> Definition:
    """The chosen token's log-probability and rank, and the `TOP` most probable tokens, of every row."""
    threads = BINS
    rows, vocab_size = T.dynamic("rows"), T.dynamic("vocab_size")

    @T.macro
    def wait():
        """Until every block of the row has written what the others read."""
        T.sync_threads()
        if blocks > 1:
            T.cluster_sync()
            T.sync_threads()

    @T.prim_func
    def function(
        logits: T.Tensor((rows, vocab_size), F32),
        tokens: T.Tensor((rows,), U32),
        exchange: T.Tensor((rows, 2, blocks, BINS), I64),
        chosen_logprob: T.Tensor((rows,), F32),
        chosen_rank: T.Tensor((rows,), U32),
        top_tokens: T.Tensor((rows, TOP), U32),
        top_logprobs: T.Tensor((rows, TOP), F32),
        row_status: T.Tensor((rows,), I32),
    ):
        with T.Kernel(blocks, rows, threads=threads, cluster_dims=blocks) as (block, row):
            # Threads read what others wrote: the compiler must not take the pointers for the only ones.
            T.annotate_restrict_buffers(exchange)
            thread = T.get_thread_binding()
            values = T.alloc_local((UNROLL,), F32)
            bins = T.alloc_shared((BINS,), U32)
            sums = T.alloc_shared((WARPS,), I64)
            found = T.alloc_shared((1,), I32)
            found_before = T.alloc_shared((1,), I64)
            count = T.alloc_shared((1,), I32)
            places = T.alloc_shared((blocks * TOP,), I64)
            length = T.ceildiv(vocab_size, blocks)
            begin = T.alloc_var(I32, init=block * length)
            end = T.alloc_var(I32, init=T.min(begin + length, vocab_size))
            turn = T.alloc_var(I32, init=0)

            logit = T.alloc_var(F32, init=-T.infinity(F32))
            best_token = T.alloc_var(I32, init=NO_TOKEN)
            broken = T.alloc_var(I32, init=0)
            for step in T.serial(T.ceildiv(length, threads * UNROLL)):
                base = T.alloc_var(I32, init=begin + step * threads * UNROLL + thread)
                load(values, logits, row, base, threads, end)
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
            chosen = T.alloc_var(I32, init=T.cast(tokens[row], I32))
            failed = T.alloc_var(I32, init=0)
            if first == NO_TOKEN:
                failed = NO_CANDIDATE
            if first == BROKEN:
                failed = LOGIT_NOT_A_NUMBER
            if chosen < 0 or chosen >= vocab_size:
                failed = INDEX_OUT_OF_RANGE
            if block == 0 and thread == 0:
                row_status[row] = failed
                if failed != 0:
                    chosen_logprob[row] = -T.infinity(F32)
                    chosen_rank[row] = T.Cast(U32, 0)
            if block == 0 and thread < TOP and (failed != 0 or thread >= vocab_size):
                top_tokens[row, thread] = T.Cast(U32, 0xFFFFFFFF)
                top_logprobs[row, thread] = -T.infinity(F32)

            if failed == 0:
                # The sum of exponentials, and how many tokens come before the chosen one.
                chosen_logit = T.alloc_var(F32, init=logits[row, chosen])
                total = T.alloc_var(I64, init=0)
                ahead = T.alloc_var(I64, init=0)
                for step in T.serial(T.ceildiv(length, threads * UNROLL)):
                    base = T.alloc_var(I32, init=begin + step * threads * UNROLL + thread)
                    load(values, logits, row, base, threads, end)
                    for j in T.unroll(UNROLL):
                        w = T.alloc_var(F32, init=T.exp2((values[j] - peak) * LOG2_E))
                        total += T.cast(w * 2.0**WEIGHT_BITS, I64)
                        at = T.alloc_var(I32, init=base + j * threads)
                        if at < end and (values[j] > chosen_logit or (values[j] == chosen_logit and at < chosen)):
                            ahead += 1
                sum_total = T.alloc_var(I64, init=scan(total, sums, thread)[1])
                sum_ahead = T.alloc_var(I64, init=scan(ahead, sums, thread)[1])
                if thread == 0:
                    exchange[row, turn, block, 0] = sum_total
                    exchange[row, turn, block, 1] = sum_ahead
                wait()
                total = exchange[row, turn, 0, 0]
                ahead = exchange[row, turn, 0, 1]
                for other in T.serial(blocks - 1):
                    total += exchange[row, turn, other + 1, 0]
                    ahead += exchange[row, turn, other + 1, 1]
                turn = 1 - turn
                if block == 0 and thread == 0:
                    chosen_logprob[row] = log_probability(chosen_logit, peak, total)
                    chosen_rank[row] = T.cast(ahead + 1, U32)

                # The least place among the most probable ones.
                wanted = T.alloc_var(I64, init=T.cast(T.min(vocab_size, TOP), I64))
                above = T.alloc_var(I64, init=0)
                searching = T.alloc_var(I32, init=1)
                outer = T.alloc_var(I32, init=0)
                high = T.alloc_var(I64, init=0)
                low = T.alloc_var(I64, init=0)
                shift = T.alloc_var(I64, init=0)
                # Values that may be in question, for a quick look.
                high_logit = T.alloc_var(F32, init=peak)
                low_logit = T.alloc_var(F32, init=-T.infinity(F32))
                for level in T.serial(LEVELS):
                    if searching == 1:
                        bins[thread] = T.Cast(U32, 0)
                        T.sync_threads()
                        for step in T.serial(T.ceildiv(length, threads * UNROLL)):
                            base = T.alloc_var(I32, init=begin + step * threads * UNROLL + thread)
                            load(values, logits, row, base, threads, end)
                            for j in T.unroll(UNROLL):
                                value = T.alloc_var(F32, init=values[j])
                                at = T.alloc_var(I32, init=base + j * threads)
                                for _ in once_if(T.And(T.And(value >= low_logit, value <= high_logit), at < end)):
                                    coarse = T.alloc_var(I32, init=bin_of(value, peak))
                                    place = T.alloc_var(I64, init=place_of(value, at))
                                    digit = T.alloc_var(I32, init=coarse)
                                    if level > 0:
                                        digit = T.cast((high - place) >> shift, I32)
                                    if level == 0 or (coarse == outer and place <= high and place >= low):
                                        T.atomic_add(bins[digit], T.Cast(U32, 1))
                        T.sync_threads()
                        exchange[row, turn, block, thread] = T.cast(bins[thread], I64)
                        wait()
                        mine = T.alloc_var(I64, init=exchange[row, turn, 0, thread])
                        for other in T.serial(blocks - 1):
                            mine += exchange[row, turn, other + 1, thread]
                        turn = 1 - turn
                        before = T.alloc_var(I64, init=scan(mine, sums, thread)[0])
                        if above + before < wanted and wanted <= above + before + mine:
                            found[0] = thread
                            found_before[0] = before
                            # Whether the whole bin is wanted.
                            count[0] = T.if_then_else(wanted == above + before + mine, 1, 0)
                        T.sync_threads()
                        digit_found = T.alloc_var(I32, init=found[0])
                        above += found_before[0]
                        if level == 0:
                            outer = digit_found
                            near = T.cast(digit_found, F32) / BINS_PER_NAT
                            slack = T.alloc_var(F32, init=(T.abs(peak) + near + 1.0) * SLACK)
                            high_logit = T.min(peak, peak - near + slack)
                            low_logit = peak - near - 1.0 / BINS_PER_NAT - slack
                            if digit_found == BINS - 1:
                                low_logit = -T.infinity(F32)
                            high = place_of(high_logit, 0)
                            low = place_of(low_logit, (1 << ID_BITS) - 1)
                        else:
                            high = high - (T.cast(digit_found, I64) << shift)
                            low = T.max(low, high + 1 - (T.Cast(I64, 1) << shift))
                            if shift == 0 or count[0] == 1:
                                searching = 0
                        distance = T.alloc_var(I64, init=high - low)
                        shift = 0
                        while distance >= BINS:
                            distance = distance >> 1
                            shift += 1

                # Every block gives its share of them; the first block puts them in order.
                T.sync_threads()
                if thread == 0:
                    count[0] = 0
                T.sync_threads()
                for step in T.serial(T.ceildiv(length, threads * UNROLL)):
                    base = T.alloc_var(I32, init=begin + step * threads * UNROLL + thread)
                    load(values, logits, row, base, threads, end)
                    for j in T.unroll(UNROLL):
                        value = T.alloc_var(F32, init=values[j])
                        at = T.alloc_var(I32, init=base + j * threads)
                        for _ in once_if(T.And(value >= low_logit, at < end)):
                            place = T.alloc_var(I64, init=place_of(value, at))
                            # `low` may reach into the next bin, whose tokens were not counted.
                            if place >= low and bin_of(value, peak) <= outer:
                                index = T.alloc_var(I32, init=T.atomic_add(count[0], 1, return_prev=True))
                                if index < TOP:
                                    exchange[row, turn, block, index] = place
                T.sync_threads()
                if thread == 0:
                    exchange[row, turn, block, TOP] = T.cast(count[0], I64)
                wait()
                if block == 0:
                    if thread < blocks * TOP:
                        places[thread] = NO_PLACE
                        if T.cast(thread % TOP, I64) < exchange[row, turn, thread // TOP, TOP]:
                            places[thread] = exchange[row, turn, thread // TOP, thread % TOP]
                    T.sync_threads()
                    if thread < blocks * TOP:
                        own = T.alloc_var(I64, init=places[thread])
                        rank = T.alloc_var(I32, init=0)
                        for other in T.serial(blocks * TOP):
                            if places[other] > own:
                                rank += 1
                        if own > NO_PLACE and rank < TOP:
                            token = T.alloc_var(I32, init=(1 << ID_BITS) - 1 - T.cast(own & ((1 << ID_BITS) - 1), I32))
                            top_tokens[row, rank] = T.cast(token, U32)
                            top_logit = T.alloc_var(F32, init=logits[row, token])
                            top_logprobs[row, rank] = log_probability(top_logit, peak, total)

    return Definition(
        contract="sampling.log_probabilities",
        function=function,
        properties={"logits": "f32", "top": TOP},
        dimensions={"rows": Domain(max=65535), "vocab_size": Domain(max=2**ID_BITS)},
        operands={
            "logits": Tensor(("rows", "vocab_size"), alignment=4),
            "tokens": Tensor(("rows",), alignment=4),
            "exchange": Tensor(("rows", 2, blocks, BINS), "read_write", "workspace"),
            "chosen_logprob": Tensor(("rows",), "write", alignment=4),
            "chosen_rank": Tensor(("rows",), "write", alignment=4),
            "top_tokens": Tensor(("rows", TOP), "write", alignment=4),
            "top_logprobs": Tensor(("rows", TOP), "write", alignment=4),
            "row_status": Tensor(("rows",), "write", alignment=4),
        },
        constants={"blocks_per_row": blocks, "top": TOP},
        accumulation="i64",
        pass_configs=UNGUARDED,
    )


NO_PLACE = -(2**62)


@T.macro
def load(values, logits, row, base, stride, end):
    """Logits from `base` on, `stride` apart; minus infinity past `end`."""
    for j in T.unroll(UNROLL):
        values[j] = T.if_then_else(base + j * stride < end, logits[row, base + j * stride], -T.infinity(F32))


def bin_of(value, peak):
    """The bin of a logit by its distance from the greatest."""
    return T.cast(T.min((peak - value) * BINS_PER_NAT, float(BINS - 1)), I32)


def place_of(value, token):
    """Where a token stands: greater is sooner."""
    return T.cast(order(value), I64) * (1 << ID_BITS) + ((1 << ID_BITS) - 1 - T.cast(token, I64))


def log_probability(logit, peak, total):
    """`logit - (peak + ln(total))` in f64, rounded once."""
    sum_of_weights = T.cast(total, "float64") * 2.0**-WEIGHT_BITS
    return T.cast(T.cast(logit, "float64") - (T.cast(peak, "float64") + T.log(sum_of_weights)), F32)
