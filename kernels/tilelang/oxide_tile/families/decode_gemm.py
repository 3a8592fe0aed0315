"""Matrix products of one token: weights stream through shared memory, and what stands around a product is fused.

A warp copies tiles of weight rows into a ring of stages as soon as its block is placed, before the kernel ahead has
ended; the other warps wait for that, take in the token, and share the k of every stage. Blocks take turns at tiles, so
that `tile_rows` and `blocks` can be chosen to give each multiprocessor as many bytes as the next.

The token is the residual stream. It is weighted and rounded to the weights' type on its way in; what scales
it, one over its root mean square, scales the sums.
"""

import tilelang.language as T

from oxide_tile.definition import UNLIMITED, Definition, DefinitionError, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families.common import (
    F32,
    I32,
    LENGTH_OUT_OF_RANGE,
    PAGE_OUT_OF_RANGE,
    PAGE_SIZE,
    PAGING,
    POSITION_OUT_OF_RANGE,
    STATUS,
    TILE_DTYPES,
    exactly,
    report,
)
from oxide_tile.families.common import part as part_of

EPILOGUES = ("norm", "norm_swiglu")
WARP = 32
# A tensor core's tile of weights: 16 rows, 16 of k. Of its 8 tokens all are the one.
ROWS, STEP = 16, 16
HALF = ROWS // 2
# Between rows in shared memory, so that 8 rows lie in 8 different groups of banks.
PAD = 8
# Elements that a thread loads at once of the residual stream.
F32_LANES = 4
LOG2_E = 1.4426950408889634


def streamed(
    dtype: str,
    output_dtype: str,
    epilogue: str,
    capacity: int,
    chunk: int,
    stages: int,
    warps: int,
) -> Definition:
    """Products with up to `capacity` k, `chunk` of it a stage."""
    if epilogue not in EPILOGUES:
        raise DefinitionError(f"no epilogue {epilogue}")
    check_schedule(capacity, chunk, warps)
    tile, out_tile = TILE_DTYPES[dtype], TILE_DTYPES[output_dtype]
    gated, consumers = epilogue == "norm_swiglu", warps * WARP
    largest = HALF if gated else ROWS
    n, k, vectors = T.dynamic("n"), T.dynamic("k"), T.dynamic("vectors")

    @T.prim_func
    def function(
        input: T.Tensor((1, vectors, F32_LANES), F32),
        norm_weight: T.Tensor((vectors, F32_LANES), tile),
        weight: T.Tensor((n * 2 if gated else n, k), tile),
        output: T.Tensor((1, n), out_tile),
        blocks: T.int32,
        tile_rows: T.int32,
        epsilon: T.float32,
    ):
        with T.Kernel(blocks, threads=consumers + WARP) as block:
            ring = T.alloc_shared((stages, ROWS, chunk + PAD), tile)
            token = T.alloc_shared((capacity,), tile)
            sums = T.alloc_shared((2, warps, ROWS), F32)
            squares = T.alloc_shared((warps,), F32)
            full = T.alloc_barrier([1] * stages)
            empty = T.alloc_barrier([warps] * stages)
            T.annotate_min_blocks_per_sm(2)
            thread = T.get_thread_binding()
            at = T.alloc_local((2,), I32)
            turns = T.alloc_var(I32, init=T.max(T.ceildiv(T.ceildiv(n, tile_rows) - block, blocks), 0))
            T.pdl_trigger()
            at[0] = 0
            at[1] = 0
            if thread >= consumers:
                for turn in T.serial(turns):
                    lane = T.alloc_var(I32, init=thread % WARP)
                    first = T.alloc_var(I32, init=(block + turn * blocks) * tile_rows)
                    rows = T.alloc_var(I32, init=T.min(tile_rows, n - first))
                    copied = T.alloc_var(I32, init=-1)
                    if gated:
                        # Gate rows, then the up rows that belong to them.
                        if lane % HALF < rows and lane < ROWS:
                            copied = first + lane % HALF + lane // HALF * n
                    elif lane < rows:
                        copied = first + lane
                    stream_tile(
                        ring, full, empty, at, weight, copied, rows * 2 if gated else rows, lane, k, chunk, stages
                    )
            else:
                scale = T.alloc_local((1,), F32)
                pair = T.alloc_local((2,), F32)
                load_normed(
                    input, norm_weight, token, squares, thread, vectors,
                    -(-capacity // (F32_LANES * consumers)), consumers, tile,
                )  # fmt: skip
                T.sync_threads(1, consumers)
                scale_of(scale, squares, k, epsilon, warps)
                for turn in T.serial(turns):
                    first = T.alloc_var(I32, init=(block + turn * blocks) * tile_rows)
                    multiply(ring, full, empty, at, token, sums, turn, thread, k, chunk, stages, warps, tile)
                    T.sync_threads(1, consumers)
                    if thread < HALF:
                        collect(pair, sums, turn, thread, scale, warps)
                        if gated:
                            if thread < tile_rows and first + thread < n:
                                silu = T.alloc_var(F32, init=pair[0] / (1.0 + T.exp2(pair[0] * -LOG2_E)))
                                output[0, first + thread] = T.cast(silu * pair[1], out_tile)
                        else:
                            for j in T.unroll(2):
                                if thread + j * HALF < tile_rows and first + thread + j * HALF < n:
                                    output[0, first + thread + j * HALF] = T.cast(pair[j], out_tile)

    properties = {"input": "f32", "weight": dtype, "output": output_dtype, "norm": "rms"}
    if gated:
        properties["activation"] = "swiglu"
    else:
        properties |= {"bias": "absent", "residual": "absent"}
    return Definition(
        contract="gemm.dense",
        function=function,
        properties=properties,
        dimensions={
            "m": exactly(1),
            "n": Domain(8, UNLIMITED // 2, 8),
            "k": Domain(2 * STEP, capacity, 2 * STEP),
            "tile_rows": Domain(max=largest),
            "blocks": Domain(),
        },
        operands={
            "input": Tensor(("m", "k")),
            "norm_weight": Tensor(("k",)),
            "weight": Tensor((Name("n") * 2 if gated else "n", "k")),
            "output": Tensor(("m", "n"), "write"),
        },
        derived={"vectors": part_of("k", F32_LANES)},
        attributes={"epsilon": "f32"},
        pass_configs=PASS_CONFIGS,
    )


def projected(dtype: str, head_dim: int, bias: str, capacity: int, chunk: int, stages: int, warps: int) -> Definition:
    """Query, key and value heads of the normalized residual stream; then as `kv_cache.rope_append`.

    A tile is 8 pairs of a head: its two halves have 8 rows each. Projections are not rounded before they are turned.
    """
    check_schedule(capacity, chunk, warps)
    tile = TILE_DTYPES[dtype]
    consumers, half, biased = warps * WARP, head_dim // 2, bias == "present"
    groups = half // HALF
    rows, k, vectors = T.dynamic("rows"), T.dynamic("k"), T.dynamic("vectors")
    max_pages, num_pages, max_positions = T.dynamic("max_pages"), T.dynamic("num_pages"), T.dynamic("max_positions")
    num_q_heads, num_kv_heads = T.dynamic("num_q_heads"), T.dynamic("num_kv_heads")

    @T.macro
    def find_place(status, positions, block_table, position, place, block):
        """Where the token turns and where it is appended: an angle and a page, each -1 if there is none."""
        position[0] = positions[0]
        place[0] = -1
        place[1] = -1
        if position[0] >= 0 and position[0] < max_positions:
            place[0] = position[0]
        elif block == 0:
            report(status, POSITION_OUT_OF_RANGE, 0)
        if position[0] >= 0 and position[0] < max_pages * PAGE_SIZE:
            place[1] = block_table[0, position[0] // PAGE_SIZE]
            if place[1] < 0 or place[1] >= num_pages:
                place[1] = -1
                if block == 0:
                    report(status, PAGE_OUT_OF_RANGE, 0)
        elif block == 0:
            report(status, LENGTH_OUT_OF_RANGE, 0)
        if place[0] < 0:
            place[1] = -1

    @T.macro
    def store(q_out, k_pages, v_pages, pair, turn_by, place, slot, head, element):
        """Turn a pair of a query or a key, and put it where it belongs."""
        low = T.alloc_var(F32, init=pair[0])
        high = T.alloc_var(F32, init=pair[1])
        if head < num_q_heads + num_kv_heads:
            low = pair[0] * turn_by[0] - pair[1] * turn_by[1]
            high = pair[1] * turn_by[0] + pair[0] * turn_by[1]
        if head < num_q_heads:
            if place[0] < 0:
                low = 0.0
                high = 0.0
            q_out[0, head, element] = T.cast(low, tile)
            q_out[0, head, half + element] = T.cast(high, tile)
        elif place[1] >= 0:
            if head < num_q_heads + num_kv_heads:
                k_pages[place[1], head - num_q_heads, slot, element] = T.cast(low, tile)
                k_pages[place[1], head - num_q_heads, slot, half + element] = T.cast(high, tile)
            else:
                v_pages[place[1], head - num_q_heads - num_kv_heads, slot, element] = T.cast(low, tile)
                v_pages[place[1], head - num_q_heads - num_kv_heads, slot, half + element] = T.cast(high, tile)

    @T.prim_func
    def function(
        input: T.Tensor((1, vectors, F32_LANES), F32),
        norm_weight: T.Tensor((vectors, F32_LANES), tile),
        weight: T.Tensor((rows, k), tile),
        bias: T.Tensor((rows,), tile),
        positions: T.Tensor((1,), I32),
        block_table: T.Tensor((1, max_pages), I32),
        rotations: T.Tensor((max_positions, half, 2), F32),
        q_out: T.Tensor((1, num_q_heads, head_dim), tile),
        k_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim), tile),
        v_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim), tile),
        status: T.Tensor((1,), I32),
        blocks: T.int32,
        epsilon: T.float32,
    ):
        with T.Kernel(blocks, threads=consumers + WARP) as block:
            ring = T.alloc_shared((stages, ROWS, chunk + PAD), tile)
            token = T.alloc_shared((capacity,), tile)
            sums = T.alloc_shared((2, warps, ROWS), F32)
            squares = T.alloc_shared((warps,), F32)
            full = T.alloc_barrier([1] * stages)
            empty = T.alloc_barrier([warps] * stages)
            T.annotate_min_blocks_per_sm(2)
            thread = T.get_thread_binding()
            at = T.alloc_local((2,), I32)
            turns = T.alloc_var(I32, init=T.max(T.ceildiv(rows // ROWS - block, blocks), 0))
            T.pdl_trigger()
            at[0] = 0
            at[1] = 0
            if thread >= consumers:
                for turn in T.serial(turns):
                    index = T.alloc_var(I32, init=block + turn * blocks)
                    lane = T.alloc_var(I32, init=thread % WARP)
                    copied = T.alloc_var(I32, init=-1)
                    if lane < ROWS:
                        copied = index // groups * head_dim + index % groups * HALF + lane % HALF + lane // HALF * half
                    stream_tile(ring, full, empty, at, weight, copied, ROWS, lane, k, chunk, stages)
            else:
                scale = T.alloc_local((1,), F32)
                pair = T.alloc_local((2,), F32)
                side = T.alloc_local((2,), F32)
                turn_by = T.alloc_local((2,), F32)
                position = T.alloc_local((1,), I32)
                place = T.alloc_local((2,), I32)
                load_normed(
                    input, norm_weight, token, squares, thread, vectors,
                    -(-capacity // (F32_LANES * consumers)), consumers, tile,
                )  # fmt: skip
                if thread == 0:
                    find_place(status, positions, block_table, position, place, block)
                elif thread < HALF:
                    find_place(status, positions, block_table, position, place, 1)
                T.sync_threads(1, consumers)
                scale_of(scale, squares, k, epsilon, warps)
                for turn in T.serial(turns):
                    index = T.alloc_var(I32, init=block + turn * blocks)
                    head = T.alloc_var(I32, init=index // groups)
                    element = T.alloc_var(I32, init=index % groups * HALF + thread)
                    # Loaded ahead, so that it is there when the sums are.
                    if thread < HALF:
                        for j in T.unroll(2):
                            side[j] = T.cast(bias[head * head_dim + j * half + element], F32) if biased else 0.0
                            turn_by[j] = rotations[T.max(place[0], 0), element, j]
                    multiply(ring, full, empty, at, token, sums, turn, thread, k, chunk, stages, warps, tile)
                    T.sync_threads(1, consumers)
                    if thread < HALF:
                        collect(pair, sums, turn, thread, scale, warps)
                        for j in T.unroll(2):
                            pair[j] += side[j]
                        store(q_out, k_pages, v_pages, pair, turn_by, place, position[0] % PAGE_SIZE, head, element)

    pool = ("num_pages", "num_kv_heads", PAGE_SIZE, head_dim)
    width = (Name("num_q_heads") + Name("num_kv_heads") * 2) * head_dim
    return Definition(
        contract="kv_cache.rope_append",
        function=function,
        properties={
            "dtype": dtype,
            "pairing": "neox",
            **PAGING,
            "qkv": "projected",
            "norm": "rms",
            "bias": dtype if biased else "absent",
            "qk_norm": "absent",
        },
        dimensions={
            "tokens": exactly(1),
            "batch": exactly(1),
            "hidden_size": Domain(2 * STEP, capacity, 2 * STEP),
            "num_q_heads": Domain(max=1024),
            "num_kv_heads": Domain(max=1024),
            "head_dim": exactly(head_dim),
            "rotary_dim": exactly(head_dim),
            "page_size": exactly(PAGE_SIZE),
            "num_pages": Domain(),
            "max_pages": Domain(max=2**24),
            "max_positions": Domain(),
            "blocks": Domain(),
        },
        operands={
            "input": Tensor(("tokens", "hidden_size")),
            "norm_weight": Tensor(("hidden_size",)),
            "weight": Tensor((width, "hidden_size")),
            "bias": Tensor((width,)),
            "positions": Tensor(("tokens",), alignment=4),
            "block_table": Tensor(("batch", "max_pages"), alignment=4),
            "rotations": Tensor(("max_positions", half, 2)),
            "q_out": Tensor(("tokens", "num_q_heads", head_dim), "write"),
            "k_pages": Tensor(pool, "write"),
            "v_pages": Tensor(pool, "write"),
            "status": STATUS,
        },
        attributes={"epsilon": "f32"},
        derived={"rows": width, "k": Name("hidden_size"), "vectors": part_of("hidden_size", F32_LANES)},
        constants={"page_size": PAGE_SIZE, "head_dim": head_dim},
        pass_configs=PASS_CONFIGS,
    )


# The warps have their parts by hand, and no barrier that all of them could meet at.
PASS_CONFIGS = {"tl.disable_warp_specialized": True, "tl.disable_thread_storage_sync": True}


def check_schedule(capacity: int, chunk: int, warps: int) -> None:
    """Warps take two steps of k at a time."""
    if chunk % (2 * STEP * warps) or capacity % (2 * STEP):
        raise DefinitionError("warps take two steps of k at a time")


@T.macro
def advance(at, stages):
    """On to the next stage of the ring; `at` is a stage and the parity of this way around."""
    at[0] += 1
    if at[0] == stages:
        at[0] = 0
        at[1] = at[1] ^ 1


@T.macro
def stream_tile(ring, full, empty, at, weight, row, rows, lane, k, chunk, stages):
    """Copy a tile's `rows`, a chunk of k after the other; a lane copies `row`, or nothing if that is negative."""
    for step in T.serial(T.ceildiv(k, chunk)):
        size = T.alloc_var(I32, init=T.min(chunk, k - step * chunk) * 2)
        T.mbarrier_wait_parity(empty[at[0]], at[1] ^ 1)
        if lane == 0:
            T.mbarrier_arrive_expect_tx(full[at[0]], size * rows)
        T.sync_warp()
        if row >= 0:
            T.tma_load(
                T.access_ptr(ring[at[0], lane, 0], "w", chunk),
                T.access_ptr(weight[row, step * chunk], "r", chunk),
                full[at[0]],
                T.cast(size, "uint32"),
                0,
            )
        advance(at, stages)


@T.macro
def load_normed(input, norm_weight, token, squares, thread, vectors, loads, consumers, tile):
    """Take in the weights of the norm, wait for the kernel ahead, weight its output, and sum its squares by warp."""
    value = T.alloc_local((F32_LANES,), F32)
    scaled = T.alloc_local((F32_LANES,), tile)
    gamma = T.alloc_local((loads, F32_LANES), tile)
    square = T.alloc_var(F32, init=0.0)
    for i in T.unroll(loads):
        at = i * consumers + thread
        if at < vectors:
            for j in T.vectorized(F32_LANES):
                gamma[i, j] = norm_weight[at, j]
    T.pdl_sync()
    for i in T.unroll(loads):
        at = i * consumers + thread
        if at < vectors:
            for j in T.vectorized(F32_LANES):
                value[j] = input[0, at, j]
            for j in T.unroll(F32_LANES):
                square += value[j] * value[j]
                scaled[j] = T.cast(value[j] * T.cast(gamma[i, j], F32), tile)
            for j in T.vectorized(F32_LANES):
                token[at * F32_LANES + j] = scaled[j]
    for distance in T.unroll(5):
        square += T.shfl_xor(square, 1 << distance)
    if thread % WARP == 0:
        squares[thread // WARP] = square


@T.macro
def scale_of(scale, squares, k, epsilon, warps):
    """One over the root mean square of the token."""
    scale[0] = squares[0]
    for warp in T.unroll(warps - 1):
        scale[0] += squares[warp + 1]
    scale[0] = T.rsqrt(scale[0] / T.cast(k, F32) + epsilon)


@T.macro
def multiply(ring, full, empty, at, token, sums, turn, thread, k, chunk, stages, warps, tile):
    """A tile's rows times the token, over this warp's part of every chunk, into `sums[turn % 2, warp]`."""
    a = T.alloc_local((2, 8), tile)
    b = T.alloc_local((8,), tile)
    sum_ = T.alloc_local((2, 4), F32)
    lane = thread % WARP
    warp = thread // WARP
    part = chunk // warps
    for side in T.unroll(2):
        for j in T.unroll(4):
            sum_[side, j] = 0.0
    for step in T.serial(T.ceildiv(k, chunk)):
        T.mbarrier_wait_parity(full[at[0]], at[1])
        for i in T.unroll(chunk // warps // (2 * STEP)):
            within = warp * part + i * 2 * STEP
            if step * chunk + within < k:
                for side in T.unroll(2):
                    T.ptx_ldmatrix(
                        False, 4,
                        T.access_ptr(ring[at[0], lane % ROWS, within + side * STEP + lane // ROWS * 8], "r", 8),
                        T.access_ptr(a[side, 0], "w", 8),
                    )  # fmt: skip
                T.ptx_ldmatrix(
                    False, 4,
                    T.access_ptr(token[step * chunk + within + lane // 8 * 8], "r", 8),
                    T.access_ptr(b[0], "w", 8),
                )  # fmt: skip
                for side in T.unroll(2):
                    T.ptx_mma(
                        F32, "m16n8k16", "row", "col", "bf16", "bf16", "fp32",
                        a.data, side * 8, b.data, side * 4, sum_.data, side * 4, T.bool(False),
                    )  # fmt: skip
        T.sync_warp()
        if lane == 0:
            T.mbarrier_arrive(empty[at[0]])
        advance(at, stages)
    # Of a tensor core's 8 tokens, a lane in 4 holds the first: of one row and of the row 8 further.
    if lane % 4 == 0:
        for j in T.unroll(2):
            sums[turn % 2, warp, j * HALF + lane // 4] = sum_[0, j * 2] + sum_[1, j * 2]


@T.macro
def collect(pair, sums, turn, thread, scale, warps):
    """All of the sums of a row and of the row 8 further, scaled."""
    for j in T.unroll(2):
        pair[j] = 0.0
        for warp in T.unroll(warps):
            pair[j] += sums[turn % 2, warp, j * HALF + thread]
        pair[j] *= scale[0]
