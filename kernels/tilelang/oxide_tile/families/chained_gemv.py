"""Matrix products of one token, with no kernel that only normalizes, turns or appends between them.

The contracts are those of `chained_gemm`. A block has 8 rows of the weight, and its warps share k. Each copies what it
multiplies, 512 bytes of a row at a time, to a place in shared memory that is its own, so that warps wait for their
copies but never for each other. The first copies begin as soon as the block is placed, which may be several kernels
before its input is there: blocks are so small that those of the next products fit beside those that still run, and
memory is read all the while. One more warp has no rows: it finds what the end of a product takes, meets the others at
the only barrier of the block, adds up what they have, and stores it.

Tensor cores multiply, with the token as all 16 rows of the left operand: they take a weight in one instruction where
unpacking and multiplying it takes seventeen.
"""

from dataclasses import replace

import tilelang.language as T

from oxide_tile.definition import UNLIMITED, Definition, DefinitionError, Domain, Tensor
from oxide_tile.expr import Name
from oxide_tile.families.chained import (
    LANES,
    QUAD,
    SQUARES,
    SUMS,
    find_place,
    outputs,
    projected_contract,
    store,
    swiglu_contract,
    turn_pairs,
    weighted_contract,
)
from oxide_tile.families.common import F32, I32, PAGE_SIZE, TILE_DTYPES, exactly, part
from oxide_tile.families.gemm import silu
from oxide_tile.families.ranged import (
    HALF,
    PASS_CONFIGS,
    ROWS,
    blocks_of_shared_memory,
    copy_slice,
    copy_token,
    multiply_ranges,
    multiply_slice,
)
from oxide_tile.families.ring import WARP

# Elements of a row that a warp copies at once.
SPAN = 256
# Sums of squares that a lane loads at once.
AHEAD = 4
# Of a thread, so that shared memory and not registers says how many blocks fit a multiprocessor that has 64 Ki of them.
REGISTERS, ALL_REGISTERS = 40, 65_536


@T.macro
def multiply_spans(input, weight, sums, low, high, k, tile, warps, stages):
    """The sums of 8 rows by warp, in two chains each; weights of the first steps come before the predecessor's end."""
    warp, lane = T.get_thread_binding() // WARP, T.get_thread_binding() % WARP
    ring = T.alloc_shared((stages, warps, ROWS, SPAN), tile)
    tokens = T.alloc_shared((stages, warps, SPAN), tile)
    steps = T.alloc_var(I32, init=T.ceildiv(k, warps * SPAN))
    sum_ = T.alloc_local((2, 4), F32)
    for step in T.unroll(stages):
        copy_slice(weight, ring, step, low, high, (step * warps + warp) * SPAN, k, SPAN)
    T.pdl_sync()
    # The first group has all of those weights.
    for step in T.unroll(stages):
        copy_token(input, tokens, step, (step * warps + warp) * SPAN, k, SPAN)
        T.ptx_commit_group()
    for side in T.unroll(2):
        for j in T.unroll(4):
            sum_[side, j] = 0.0
    for step in T.serial(steps):
        slot = T.alloc_var(I32, init=step % stages)
        T.ptx_wait_group(stages - 1)
        T.sync_warp()
        if (step * warps + warp) * SPAN < k:
            multiply_slice(ring, tokens, sum_, slot, SPAN, 2)
        T.sync_warp()
        at = T.alloc_var(I32, init=((step + stages) * warps + warp) * SPAN)
        if at < k:
            copy_slice(weight, ring, slot, low, high, at, k, SPAN)
            copy_token(input, tokens, slot, at, k, SPAN)
        T.ptx_commit_group()
    if lane < HALF:
        for j in T.unroll(2):
            sums[warp, lane * 2 + j] = sum_[0, j] + sum_[1, j]


@T.macro
def load_squares(squares, vectors):
    """Begin to load a lane's sums of squares."""
    ahead = T.alloc_local((AHEAD, SUMS), F32)
    for v in T.unroll(AHEAD):
        for j in T.vectorized(SUMS):
            ahead[v, j] = 0.0
        if v * WARP + T.get_thread_binding() % WARP < vectors:
            for j in T.vectorized(SUMS):
                ahead[v, j] = squares[0, v * WARP + T.get_thread_binding() % WARP, j]
    return ahead


@T.macro
def scale_of(squares, ahead, vectors, epsilon):
    """One over the root mean square of the token, for every lane of a warp."""
    square = T.alloc_var(F32, init=0.0)
    for v in T.unroll(AHEAD):
        for j in T.unroll(SUMS):
            square += ahead[v, j]
    for v in T.serial(T.ceildiv(vectors, WARP) - AHEAD):
        at = T.alloc_var(I32, init=(v + AHEAD) * WARP + T.get_thread_binding() % WARP)
        if at < vectors:
            for j in T.unroll(SUMS):
                square += squares[0, at, j]
    for distance in T.unroll(5):
        square += T.shfl_xor(square, 1 << distance)
    return T.rsqrt(square / T.cast(vectors * (SUMS * SQUARES), F32) + epsilon)


@T.macro
def collect(sums, row, warps):
    """The sum of a row over all warps, in their order."""
    total = T.alloc_var(F32, init=sums[0, row])
    for warp in T.unroll(warps - 1):
        total += sums[warp + 1, row]
    return total


@T.macro
def collect_quad(sums, row, warps):
    """The sums of four rows over all warps, in their order."""
    total = T.alloc_local((QUAD,), F32)
    for lane in T.vectorized(QUAD):
        total[lane] = sums[0, row + lane]
    for warp in T.unroll(warps - 1):
        for lane in T.vectorized(QUAD):
            total[lane] += sums[warp + 1, row + lane]
    return total


@T.macro
def square_in_turn(total):
    """The squares of 8 lanes, of either four in turn, then of the two."""
    lane = T.get_thread_binding() % WARP
    square = T.alloc_var(F32, init=0.0)
    for j in T.unroll(QUAD):
        other = T.alloc_var(F32, init=T.shfl_sync(total, lane // QUAD * QUAD + j))
        square += other * other
    square += T.shfl_xor(square, QUAD)
    return square


@T.macro
def begin(warps, block_k, stages):
    """Let the next kernel begin, and as many blocks share a multiprocessor as its shared memory has room for."""
    if block_k:
        T.annotate_min_blocks_per_sm(blocks_of_shared_memory(warps, block_k, stages))
    else:
        T.annotate_min_blocks_per_sm(ALL_REGISTERS // (REGISTERS * (warps + 1) * WARP))
    T.pdl_trigger()


@T.macro
def multiply(input, weight, sums, low, high, k, tile, warps, block_k, stages):
    """The sums of 8 rows by warp: each has a range of k in slices of block_k, or without these spans of all of it."""
    if block_k:
        multiply_ranges(input, weight, sums, low, high, k, tile, warps, block_k, stages)
    else:
        multiply_spans(input, weight, sums, low, high, k, tile, warps, stages)


@T.macro
def multiply_weighted(input, squares, weight, low, high, k, vectors, epsilon, tile, warps, block_k, stages):
    """The sums of 8 rows by warp, for every thread, and what they are scaled with, for the last warp."""
    begin(warps, block_k, stages)
    sums = T.alloc_shared((warps, ROWS), F32)
    scale = T.alloc_var(F32)
    if T.get_thread_binding() < warps * WARP:
        multiply(input, weight, sums, low, high, k, tile, warps, block_k, stages)
    else:
        T.pdl_sync()
        ahead = load_squares(squares, vectors)
        scale = scale_of(squares, ahead, vectors, epsilon)
    T.sync_threads()
    return sums, scale


def weighted(dtype: str, warps: int, stages: int, block_k: int = 0) -> Definition:
    """As `chained_gemm.weighted`; where k has no ranges, squares of 8 elements are added up in pairs of pairs."""
    tile = TILE_DTYPES[dtype]
    n, k, eights = T.dynamic("n"), T.dynamic("k"), T.dynamic("eights_of_row")

    @T.prim_func
    def function(
        input: T.Tensor((1, k), tile),
        weight: T.Tensor((n, k), tile),
        residual: T.Tensor((1, n), F32),
        norm_weight: T.Tensor((n,), tile),
        output: T.Tensor((1, n), F32),
        weighted: T.Tensor((1, n), tile),
        squares: T.Tensor((1, eights), F32),
    ):
        with T.Kernel(eights, threads=(warps + 1) * WARP) as block:
            thread = T.get_thread_binding()
            begin(warps, block_k, stages)
            sums = T.alloc_shared((warps, ROWS), F32)
            first = T.alloc_var(I32, init=block * ROWS)
            row = T.alloc_var(I32, init=first + thread % ROWS)
            norm, added = T.alloc_var(F32), T.alloc_var(F32)
            if thread < warps * WARP:
                multiply(input, weight, sums, first, first + HALF, k, tile, warps, block_k, stages)
            else:
                norm = T.cast(norm_weight[row], F32)
                T.pdl_sync()
                added = residual[0, row]
            T.sync_threads()
            if thread >= warps * WARP:
                total = T.alloc_var(F32, init=collect(sums, thread % ROWS, warps) + added)
                square = T.alloc_var(F32)
                if block_k:
                    square = square_in_turn(total)
                else:
                    square = total * total
                    for distance in T.unroll(3):
                        square += T.shfl_xor(square, 1 << distance)
                if thread % WARP < ROWS:
                    output[0, row] = total
                    weighted[0, row] = T.cast(total * norm, tile)
                if thread % WARP == 0:
                    squares[0, block] = square

    return replace(
        one_row(weighted_contract(function, dtype)),
        derived={"eights_of_row": part("n", SQUARES)},
        pass_configs=PASS_CONFIGS,
    )


def scaled_swiglu(dtype: str, warps: int, stages: int, block_k: int = 0) -> Definition:
    """`silu(scale * gate) * (scale * up)`; `weight` is `[2 n, k]`, gate rows first. A tile has four rows of either."""
    if block_k and warps > 1:
        raise DefinitionError("no tiles of a gate have several ranges of k")
    tile = TILE_DTYPES[dtype]
    n, k, vectors = T.dynamic("n"), T.dynamic("k"), T.dynamic("vectors")

    @T.prim_func
    def function(
        input: T.Tensor((1, k), tile),
        squares: T.Tensor((1, vectors, SUMS), F32),
        weight: T.Tensor((n * 2, k), tile),
        output: T.Tensor((1, n), tile),
        epsilon: T.float32,
    ):
        with T.Kernel(n // HALF, threads=(warps + 1) * WARP) as block:
            thread = T.get_thread_binding()
            first = T.alloc_var(I32, init=block * HALF)
            sums, scale = multiply_weighted(
                input, squares, weight, first, n + first, k, vectors, epsilon, tile, warps, block_k, stages
            )
            if thread >= warps * WARP:
                row = T.alloc_var(I32, init=thread % HALF)
                gate = T.alloc_var(F32, init=collect(sums, row, warps) * scale)
                up = T.alloc_var(F32, init=collect(sums, HALF + row, warps) * scale)
                if thread % WARP < HALF:
                    output[0, first + row] = T.cast(silu(gate) * up, tile)

    return replace(
        one_row(swiglu_contract(function, dtype)),
        derived={"vectors": part("k", SUMS * SQUARES)},
        pass_configs=PASS_CONFIGS,
    )


def scaled(dtype: str, warps: int, stages: int, block_k: int = 0) -> Definition:
    """`output = scale * input . weight^T` in f32."""
    tile = TILE_DTYPES[dtype]
    n, k, vectors = T.dynamic("n"), T.dynamic("k"), T.dynamic("vectors")

    @T.prim_func
    def function(
        input: T.Tensor((1, k), tile),
        squares: T.Tensor((1, vectors, SUMS), F32),
        weight: T.Tensor((n, k), tile),
        output: T.Tensor((1, n), F32),
        epsilon: T.float32,
    ):
        with T.Kernel(n // ROWS, threads=(warps + 1) * WARP) as block:
            thread = T.get_thread_binding()
            first = T.alloc_var(I32, init=block * ROWS)
            sums, scale = multiply_weighted(
                input, squares, weight, first, first + HALF, k, vectors, epsilon, tile, warps, block_k, stages
            )
            if thread >= warps * WARP:
                row = T.alloc_var(I32, init=thread % ROWS)
                total = T.alloc_var(F32, init=collect(sums, row, warps) * scale)
                if thread % WARP < ROWS:
                    output[0, first + row] = total

    return replace(
        one_row(
            Definition(
                contract="gemm.dense",
                function=function,
                properties={
                    "input": f"weighted_{dtype}",
                    "weight": dtype,
                    "output": "f32",
                    "bias": "absent",
                    "residual": "absent",
                    "norm": "squares",
                },
                dimensions={
                    "m": Domain(),
                    "n": Domain(ROWS, UNLIMITED, ROWS),
                    "k": Domain(SUMS * SQUARES, UNLIMITED, SUMS * SQUARES),
                },
                operands={
                    "input": Tensor(("m", "k")),
                    "squares": Tensor(("m", part("k", SQUARES))),
                    "weight": Tensor(("n", "k")),
                    "output": Tensor(("m", "n"), "write"),
                },
                attributes={"epsilon": "f32"},
            )
        ),
        derived={"vectors": part("k", SUMS * SQUARES)},
        pass_configs=PASS_CONFIGS,
    )


def scaled_projected(dtype: str, head_dim: int, bias: str, warps: int, stages: int, block_k: int = 0) -> Definition:
    """Query, key and value heads; then as `kv_cache.rope_append`. A tile is four pairs of a head."""
    tile = TILE_DTYPES[dtype]
    half, biased = head_dim // 2, bias == "present"
    # Tiles of a head, which are as many as half a head has quads.
    groups = half // QUAD
    k, vectors, rows, quads = (T.dynamic(n) for n in ("k", "vectors", "rows", "quads"))
    max_pages, num_pages = T.dynamic("max_pages"), T.dynamic("num_pages")
    max_positions, num_q_heads, num_kv_heads = (
        T.dynamic(name) for name in ("max_positions", "num_q_heads", "num_kv_heads")
    )

    @T.prim_func
    def function(
        input: T.Tensor((1, k), tile),
        squares: T.Tensor((1, vectors, SUMS), F32),
        weight: T.Tensor((rows, k), tile),
        bias: T.Tensor((quads, QUAD), tile),
        positions: T.Tensor((1,), I32),
        block_table: T.Tensor((1, max_pages), I32),
        rotations: T.Tensor((max_positions, groups, LANES), F32),
        q_out: T.Tensor((1, num_q_heads, head_dim // QUAD, QUAD), tile),
        k_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim // QUAD, QUAD), tile),
        v_pages: T.Tensor((num_pages, num_kv_heads, PAGE_SIZE, head_dim // QUAD, QUAD), tile),
        status: T.Tensor((1,), I32),
        epsilon: T.float32,
    ):
        with T.Kernel(rows // ROWS, threads=(warps + 1) * WARP) as block:
            thread = T.get_thread_binding()
            begin(warps, block_k, stages)
            sums = T.alloc_shared((warps, ROWS), F32)
            head = T.alloc_var(I32, init=block // groups)
            quad = T.alloc_var(I32, init=block % groups)
            # What the last warp finds before the barrier, and needs after it.
            side = T.alloc_local((2, QUAD), tile)
            turned_by = T.alloc_local((1, LANES), F32)
            place = T.alloc_local((1, 3), I32)
            scale = T.alloc_var(F32)
            if thread < warps * WARP:
                first = T.alloc_var(I32, init=head * head_dim + quad * QUAD)
                multiply(input, weight, sums, first, first + half, k, tile, warps, block_k, stages)
            else:
                if biased:
                    for side_of in T.unroll(2):
                        for lane in T.vectorized(QUAD):
                            side[side_of, lane] = bias[head * (2 * groups) + side_of * groups + quad, lane]
                T.pdl_sync()
                ahead = load_squares(squares, vectors)
                find_place(
                    status, positions, block_table, place, 0, 0,
                    block == 0 and thread == warps * WARP, max_positions, max_pages, num_pages,
                )  # fmt: skip
                for lane in T.vectorized(LANES):
                    turned_by[0, lane] = rotations[T.max(place[0, 0], 0), quad, lane]
                scale = scale_of(squares, ahead, vectors, epsilon)
            T.sync_threads()
            if thread == warps * WARP:
                low, high = collect_quad(sums, 0, warps), collect_quad(sums, HALF, warps)
                low_out, high_out = T.alloc_local((QUAD,), tile), T.alloc_local((QUAD,), tile)
                for lane in T.unroll(QUAD):
                    low[lane] *= scale
                    high[lane] *= scale
                    if biased:
                        low[lane] += T.cast(side[0, lane], F32)
                        high[lane] += T.cast(side[1, lane], F32)
                turn_pairs(low, high, low_out, high_out, turned_by, place, 0, head >= num_q_heads + num_kv_heads, tile)
                store(
                    q_out, k_pages, v_pages, low_out, high_out, place, 0, 0, head, quad, groups,
                    num_q_heads, num_kv_heads,
                )  # fmt: skip

    projection = projected_contract(function, dtype, head_dim, "present" if biased else "absent")
    return replace(
        projection,
        dimensions={**projection.dimensions, "tokens": exactly(1), "batch": exactly(1)},
        conditions=(),
        derived={
            "rows": outputs(head_dim),
            "quads": outputs(head_dim) // QUAD,
            "k": Name("hidden_size"),
            "vectors": part("hidden_size", SUMS * SQUARES),
        },
        pass_configs=PASS_CONFIGS,
    )


def one_row(product: Definition) -> Definition:
    """The product of one row."""
    return replace(product, dimensions={**product.dimensions, "m": exactly(1)})
