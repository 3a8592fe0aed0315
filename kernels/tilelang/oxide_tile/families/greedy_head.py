"""A head of which greedy rows need the best token alone: `sampling.candidates`, and `sampling.sample` of them.

`candidates` multiplies as `gemm.dense` does, `logits[rows, vocab_size] = input[rows, hidden_size] .
weight[vocab_size, hidden_size]^T`, in tiles of all rows by some tokens, and writes no logit: what is left of a tile is
each row's greatest logit and the lowest token that has it. Blocks, ring and warps are those of `prefill_gemm`. `pick`
is the greedy case of `sampling.sample` over such candidates.

A logit is the sum over hidden_size in f32, in the order in which `gemm.dense` without splits takes it, and never
rounded: a row gets the token that `sampling.argmax` would choose from the logits that such a product writes.
"""

from functools import partial

import tilelang.language as T

from oxide_tile.definition import UNLIMITED, Condition, Definition, DefinitionError, Domain, Tensor
from oxide_tile.families.common import F32, I32, TILE_DTYPES, U32, overlap_predecessor, vector_lanes
from oxide_tile.families.logits import (
    NO_SLOT,
    NO_TOKEN,
    ROW_COLUMNS,
    SETTLED,
    SLOT,
    choose_sound,
    is_nan_or_infinity,
    settle,
)
from oxide_tile.families.persistent import MULTIPROCESSORS, ceil_div
from oxide_tile.families.ring import BLOCK_K, WARP, WARPGROUP, fill, load_rows, multiply_slice, multiply_tile

# The multiprocessor's 65,536 registers by the number of warpgroups that multiply: the producer's, and theirs.
REGISTERS = {1: (40, 240), 2: (40, 232), 3: (32, 160)}
# Rows of one product of tensor cores, and how far apart the two rows of it are that a thread has sums of.
ROWS, NEXT_ROW = 64, 8
# Accumulators are taken as the PTX ISA has them of wgmma.m64nNk16: a thread's sums are pairs of neighbouring columns,
# 8 columns apart, by turns of its two rows; four neighbouring lanes have all columns of a row.
BEST_OF_ROWS = """
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

template <int COLUMNS>
__device__ __forceinline__ void best_of_rows(const float *all, int chunk, float *best, int *first) {
  const float *sums = all + chunk;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float most = sums[row * 2];
#pragma unroll
    for (int column = 1; column < COLUMNS / 4; ++column)
      most = max_or_nan(most, sums[column / 2 * 4 + row * 2 + column % 2]);
#pragma unroll
    for (int lane = 1; lane < 4; lane *= 2)
      most = max_or_nan(most, __shfl_xor_sync(0xffffffffu, most, lane));
    int found = COLUMNS;
#pragma unroll
    for (int column = COLUMNS / 4 - 1; column >= 0; --column)
      if (sums[column / 2 * 4 + row * 2 + column % 2] == most) found = column / 2 * 8 + column % 2;
    found += threadIdx.x % 4 * 2;
#pragma unroll
    for (int lane = 1; lane < 4; lane *= 2)
      found = min(found, __shfl_xor_sync(0xffffffffu, found, lane));
    best[row] = most;
    first[row] = found;
  }
}
"""


def candidates(dtype: str, tile_tokens: int, block_m: int, stages: int, consumers: int) -> Definition:
    """Tiles of up to block_m rows by tile_tokens tokens, `stages` slices of hidden_size in flight.

    Each warpgroup of `consumers` has its share of the rows.
    """
    chunks = block_m // consumers // ROWS
    if chunks * consumers * ROWS != block_m:
        raise DefinitionError(f"{block_m} rows are no whole number of {ROWS} for each of {consumers} warpgroups")
    tile, lanes, columns = TILE_DTYPES[dtype], vector_lanes(dtype), tile_tokens
    consumer_threads = consumers * WARPGROUP
    rows, vocab_size, hidden_size = T.dynamic("rows"), T.dynamic("vocab_size"), T.dynamic("hidden_size")
    tiles = T.dynamic("tiles")

    @T.macro
    def produce(input, weight, inputs, weights, full, free, block, rounds, count):
        """Fill the ring, tile after tile."""
        for round_ in T.serial(rounds):
            column = T.alloc_var(I32, init=block + round_ * MULTIPROCESSORS)
            fill(
                partial(load_rows, weight, weights, full, column, columns), input, inputs, full, free, 0, 0, round_,
                count, block_m, BLOCK_K, stages, consumer_threads,
            )  # fmt: skip

    @T.macro
    def keep_best(sum_, best_logits, best_tokens, column):
        """Write each row's best of a tile, by the first of the four lanes that have a row."""
        if (column + 1) * columns > vocab_size:
            for i, j in T.Parallel(block_m, columns):
                sum_[i, j] = T.if_then_else(column * columns + j < vocab_size, sum_[i, j], -T.infinity(F32))
        thread = T.get_thread_binding()
        logits = T.alloc_local((2,), F32)
        firsts = T.alloc_local((2,), I32)
        for chunk in T.unroll(chunks):
            T.call_extern(
                "handle",
                f"best_of_rows<{columns}>",
                sum_.data,
                chunk * (ROWS * columns // WARPGROUP),
                T.access_ptr(logits[0], "w"),
                T.access_ptr(firsts[0], "w"),
            )
            group = thread // WARPGROUP * chunks + chunk
            row = T.alloc_var(I32, init=group * ROWS + thread % WARPGROUP // WARP * 16 + thread % WARP // 4)
            for side in T.unroll(2):
                if thread % 4 == 0 and row + side * NEXT_ROW < rows:
                    best_logits[row + side * NEXT_ROW, column] = logits[side]
                    best_tokens[row + side * NEXT_ROW, column] = column * columns + firsts[side]

    @T.macro
    def consume(inputs, weights, full, free, best_logits, best_tokens, block, rounds, count):
        """Every tile of one block."""
        sum_ = T.alloc_fragment((block_m, columns), F32)
        for round_ in T.serial(rounds):
            multiply_tile(
                partial(multiply_slice, inputs, weights, sum_, block_m, columns, BLOCK_K), (sum_,),
                block_m * columns // consumer_threads, full, free, round_, count, stages,
            )  # fmt: skip
            column = T.alloc_var(I32, init=block + round_ * MULTIPROCESSORS)
            keep_best(sum_, best_logits, best_tokens, column)

    @T.prim_func
    def function(
        input: T.Tensor((rows, hidden_size), tile),
        weight: T.Tensor((vocab_size, hidden_size), tile),
        best_logits: T.Tensor((rows, tiles), F32),
        best_tokens: T.Tensor((rows, tiles), U32),
    ):
        with T.Kernel(
            T.min(tiles, MULTIPROCESSORS), threads=consumer_threads + WARPGROUP, prelude=BEST_OF_ROWS
        ) as block:
            inputs = T.alloc_shared((stages, block_m, BLOCK_K), tile)
            weights = T.alloc_shared((stages, columns, BLOCK_K), tile)
            full, free = T.alloc_barrier([1] * stages), T.alloc_barrier([consumers] * stages)
            thread = T.get_thread_binding()
            T.pdl_trigger()
            # Variables, because the compiler writes other expressions out at every use.
            count = T.alloc_var(I32, init=T.ceildiv(hidden_size, BLOCK_K))
            rounds = T.alloc_var(I32, init=T.ceildiv(tiles - block, MULTIPROCESSORS))
            if thread >= consumer_threads:
                T.set_max_nreg(REGISTERS[consumers][0], 0)
                if thread < consumer_threads + WARP:
                    produce(input, weight, inputs, weights, full, free, block, rounds, count)
            else:
                T.set_max_nreg(REGISTERS[consumers][1], 1)
                consume(inputs, weights, full, free, best_logits, best_tokens, block, rounds, count)

    tiles_of_row = ceil_div("vocab_size", columns)
    return Definition(
        contract="sampling.candidates",
        function=function,
        properties={"input": dtype, "weight": dtype, "logits": "f32", "tile": tile_tokens},
        dimensions={
            "rows": Domain(max=block_m),
            "vocab_size": Domain(max=2**30),
            "hidden_size": Domain(lanes, UNLIMITED, lanes),
        },
        operands={
            "input": Tensor(("rows", "hidden_size")),
            "weight": Tensor(("vocab_size", "hidden_size")),
            "best_logits": Tensor(("rows", tiles_of_row), "write", alignment=4),
            "best_tokens": Tensor(("rows", tiles_of_row), "write", alignment=4),
        },
        # Slices of all tiles are counted in 32 bits.
        conditions=(Condition(tiles_of_row * ceil_div("hidden_size", BLOCK_K), Domain(max=2**30)),),
        derived={"tiles": tiles_of_row},
        constants={"splits": 1, "multiprocessors": MULTIPROCESSORS},
        # Every index is checked above or by the tensor maps, and every barrier set by hand.
        pass_configs={"tl.disable_safe_memory_legalize": True, "tl.disable_thread_storage_sync": True},
    )


def pick(threads: int) -> Definition:
    """The best of a row's candidates and the lowest token among equals, a block a row, as `sampling.argmax` does it."""
    rows, candidates, max_sequences = T.dynamic("rows"), T.dynamic("candidates"), T.dynamic("max_sequences")

    @T.prim_func
    def function(
        best_logits: T.Tensor((rows, candidates), F32),
        best_tokens: T.Tensor((rows, candidates), U32),
        row_ints: T.Tensor((rows, ROW_COLUMNS), U32),
        last_tokens: T.Tensor((max_sequences,), U32),
        tokens: T.Tensor((rows,), U32),
        row_status: T.Tensor((rows,), I32),
    ):
        with T.Kernel(rows, threads=threads) as row:
            thread = T.get_thread_binding()
            overlap_predecessor()
            # In a variable: in one expression with the comparison the compiler takes a u32 for no less than 0.
            slot = T.alloc_var(I32, init=T.cast(row_ints[row, SLOT], I32))
            end = T.if_then_else(slot == NO_SLOT, 0, candidates)
            logit = T.alloc_var(F32, init=-T.infinity(F32))
            token = T.alloc_var(I32, init=NO_TOKEN)
            broken = T.alloc_var(I32, init=0)
            for step in T.serial(T.ceildiv(candidates, threads)):
                at = step * threads + thread
                if at < end:
                    value = T.alloc_var(F32, init=best_logits[row, at])
                    candidate = T.alloc_var(I32, init=T.cast(best_tokens[row, at], I32))
                    if value > logit or (value == logit and candidate < token and value > -T.infinity(F32)):
                        logit = value
                        token = candidate
                    if is_nan_or_infinity(value):
                        broken = 1
            _, first = choose_sound(logit, token, broken, thread, threads)
            if thread == 0:
                settle(row_ints, last_tokens, tokens, row_status, row, first, max_sequences)

    return Definition(
        contract="sampling.sample",
        function=function,
        properties={"logits": "candidates", "method": "greedy"},
        dimensions={"rows": Domain(max=65535), "candidates": Domain(max=2**30), "max_sequences": Domain()},
        operands={
            "best_logits": Tensor(("rows", "candidates"), alignment=4),
            "best_tokens": Tensor(("rows", "candidates"), alignment=4),
            "row_ints": Tensor(("rows", ROW_COLUMNS), alignment=4),
            **SETTLED,
        },
    )
