"""What every artifact computes, for which shapes, and how its kernels in `src/` are launched.

Names of operands, properties and dimensions are those of the contracts, as `kernels/tilelang` has them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

UNLIMITED = 2**31 - 1
# Bytes that one load or store moves: what regions are aligned to that are read or written so.
VECTOR = 16
SIZES = {"bf16": 2, "f16": 2, "f32": 4, "i32": 4}
RMS_NORM_THREADS = 256
GEMV_THREADS = 256
ROPE_THREADS = 128
# As in src/single_decode.rs.
DECODE_THREADS = 256
DECODE_HEADS = 4
DECODE_RING = 4 * 4 * 2 * DECODE_THREADS * VECTOR
CLUSTER = 8

Domain = tuple[int, int, int]


@dataclass(frozen=True)
class Operand:
    """A region of device memory."""

    name: str
    element: str
    shape: tuple[str, ...]
    access: str = "read"
    alignment: int | None = None
    role: str = "operand"
    same_as: str | None = None


@dataclass(frozen=True)
class Launch:
    """One kernel launch. Parameters are names of operands and attributes, or expressions for `u32` scalars."""

    symbol: str
    grid: tuple[str, str, str]
    threads: int
    parameters: tuple[str, ...]
    cluster: int | None = None
    dynamic_shared_memory: int = 0


@dataclass(frozen=True)
class Artifact:
    """One artifact, but for its machine code."""

    name: str
    family: str
    contract: str
    algorithm: str
    variant: dict[str, str | int]
    schedule: dict[str, int]
    properties: dict[str, str]
    dimensions: dict[str, Domain]
    operands: tuple[Operand, ...]
    launches: tuple[Launch, ...]
    conditions: tuple[tuple[str, Domain], ...] = ()
    attributes: dict[str, str] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    determinism: str = "batch_invariant"
    modules: tuple[str, ...] = ()

    @property
    def files(self) -> list[str]:
        """The files that decide the machine code."""
        modules = ("device", "element", "lib", self.family, *self.modules)
        toolchain = ("oxide_native/toolchain.py", "requirements.lock", "toolchain.lock")
        return sorted([*toolchain, *(f"src/{module}.rs" for module in modules)])


def artifacts() -> list[Artifact]:
    """Every artifact, by name."""
    return sorted([*rms_norms(), *gemvs(), *rope_appends(), *single_decodes()], key=lambda artifact: artifact.name)


def exactly(value: int) -> Domain:
    """One value."""
    return (value, value, 1)


def rms_norms() -> Iterator[Artifact]:
    """`normalization.rms_norm`, by who shares a row and the most elements that a row has."""
    for dtype in ("bf16", "f16", "f32"):
        for residual in (False, True):
            for sharing, capacity in (("warp", 1), ("warp", 2), ("block", 2), ("block", 8)):
                yield rms_norm(dtype, residual, sharing, capacity * 1024)


def rms_norm(dtype: str, residual: bool, sharing: str, capacity: int) -> Artifact:
    """One row a warp or a block."""
    width = VECTOR // SIZES[dtype]
    algorithm = f"{sharing}_{capacity // 1024}k"
    kernel = "add_rms_norm" if residual else "rms_norm"
    rows, row = "tokens * heads", ("tokens", "heads", "hidden_size")
    added = (Operand("residual", dtype, row, "read_write"),) if residual else ()
    grid = rows if sharing == "block" else f"ceil_div({rows}, {RMS_NORM_THREADS // 32})"
    names = ("input", "weight", *(operand.name for operand in added), "output")
    return Artifact(
        name=f"native.{kernel}.{dtype}.{algorithm}",
        family="rms_norm",
        contract="normalization.rms_norm",
        algorithm=algorithm,
        variant={"dtype": dtype, "residual": presence(residual)},
        schedule={"threads": RMS_NORM_THREADS, "capacity": capacity},
        properties={
            "dtype": dtype,
            "weight_dtype": dtype,
            "output_dtype": dtype,
            "residual": presence(residual),
        },
        dimensions={
            "tokens": (1, UNLIMITED, 1),
            "heads": (1, UNLIMITED, 1),
            "hidden_size": (width, capacity, width),
        },
        attributes={"epsilon": "f32"},
        operands=(
            Operand("input", dtype, row),
            Operand("weight", dtype, ("hidden_size",)),
            *added,
            Operand("output", dtype, row, "write"),
        ),
        launches=(
            Launch(
                f"{kernel}_{dtype}_{algorithm}",
                (grid, "1", "1"),
                RMS_NORM_THREADS,
                (*names, rows, "hidden_size", "epsilon"),
            ),
        ),
    )


def gemvs() -> Iterator[Artifact]:
    """`gemm.dense` of one row: warps that share rows of the weight, those rows, and loads in flight of a thread."""
    for sharers, rows, loads in ((1, 1, 6), (1, 2, 6), (2, 1, 8), (4, 1, 9), (8, 1, 7)):
        for form in ("none", "bias", "f32", "residual"):
            yield gemv(sharers, rows, loads, form)


def gemv(sharers: int, rows: int, loads: int, form: str) -> Artifact:
    """A product with a bias, a residual, or neither."""
    algorithm = f"s{sharers}_r{rows}_l{loads}"
    output = "f32" if form in ("f32", "residual") else "bf16"
    added = {
        "bias": (Operand("bias", "bf16", ("n",), alignment=2),),
        "residual": (Operand("residual", "f32", ("m", "n"), alignment=4),),
    }.get(form, ())
    names = ("input", "weight", *(operand.name for operand in added), "output")
    form_name = {"none": "", "bias": "bias_", "f32": "f32_", "residual": "residual_"}[form]
    epilogue = "none" if form == "f32" else form
    return Artifact(
        name=f"native.gemv.bf16.{output}.{epilogue}.{algorithm}",
        family="gemv",
        contract="gemm.dense",
        algorithm=algorithm,
        variant={"dtype": "bf16", "output_dtype": output, "epilogue": epilogue},
        schedule={"threads": GEMV_THREADS, "sharers": sharers, "rows": rows, "loads": loads},
        properties={
            "input": "bf16",
            "weight": "bf16",
            "output": output,
            "bias": "bf16" if form == "bias" else "absent",
            "residual": presence(form == "residual"),
        },
        dimensions={"m": exactly(1), "n": (1, UNLIMITED, 1), "k": (8, UNLIMITED - 7, 8)},
        operands=(
            Operand("input", "bf16", ("m", "k")),
            Operand("weight", "bf16", ("n", "k")),
            *added,
            Operand(
                "output",
                output,
                ("m", "n"),
                "write",
                SIZES[output],
                same_as="residual" if form == "residual" else None,
            ),
        ),
        launches=(
            Launch(
                f"gemv_{form_name}{algorithm}",
                (f"ceil_div(n, {GEMV_THREADS // 32 // sharers * rows})", "1", "1"),
                GEMV_THREADS,
                (*names, "n", "k"),
                # The input of one batch of loads.
                dynamic_shared_memory=loads * sharers * 32 * VECTOR,
            ),
        ),
    )


def rope_appends() -> Iterator[Artifact]:
    """`kv_cache.rope_append`, by layout of the pages and head size."""
    for layout in ("hnd", "nhd"):
        for head_dim in (64, 128):
            yield rope_append(layout, head_dim)


def rope_append(layout: str, head_dim: int) -> Artifact:
    """Blocks along x are tokens, along y parts of a token's items."""
    inner = ("num_kv_heads", "page_size") if layout == "hnd" else ("page_size", "num_kv_heads")
    pool = ("num_pages", *inner, str(head_dim))
    turned = head_dim // 16
    sizes = ("tokens", "batch", "num_q_heads", "num_kv_heads", "page_size", "num_pages", "max_pages", "max_positions")
    operands = (
        Operand("qkv", "bf16", ("tokens", "num_q_heads + num_kv_heads * 2", str(head_dim))),
        Operand("positions", "i32", ("tokens",), alignment=4),
        Operand("query_start", "i32", ("batch + 1",), alignment=4),
        Operand("block_table", "i32", ("batch", "max_pages"), alignment=4),
        Operand("rotations", "f32", ("max_positions", str(head_dim // 2), "2")),
        Operand("q_out", "bf16", ("tokens", "num_q_heads", str(head_dim)), "write"),
        Operand("k_pages", "bf16", pool, "write"),
        Operand("v_pages", "bf16", pool, "write"),
        Operand("status", "i32", ("1",), "read_write", 4, role="status"),
    )
    items = f"(num_q_heads + num_kv_heads) * {turned} + num_kv_heads * {2 * turned}"
    return Artifact(
        name=f"native.rope_append.bf16.{head_dim}.{layout}.threads_{ROPE_THREADS}",
        family="rope_append",
        modules=("status",),
        contract="kv_cache.rope_append",
        algorithm=f"threads_{ROPE_THREADS}",
        variant={"dtype": "bf16", "head_dim": head_dim, "page_layout": layout},
        schedule={"threads": ROPE_THREADS},
        properties={
            "dtype": "bf16",
            "pairing": "neox",
            "kv_dtype": "bf16",
            "page_layout": layout,
            "qkv": "packed",
            "qk_norm": "absent",
        },
        dimensions={
            "tokens": (1, UNLIMITED, 1),
            "batch": (1, UNLIMITED, 1),
            "num_q_heads": (1, 1024, 1),
            "num_kv_heads": (1, 1024, 1),
            "head_dim": exactly(head_dim),
            "rotary_dim": exactly(head_dim),
            "page_size": (1, 65536, 1),
            "num_pages": (1, UNLIMITED, 1),
            "max_pages": (1, 2**24, 1),
            "max_positions": (1, UNLIMITED, 1),
        },
        constants={"head_dim": head_dim},
        operands=operands,
        launches=(
            Launch(
                f"rope_append_{head_dim}_{layout}",
                ("tokens", f"ceil_div({items}, {ROPE_THREADS})", "1"),
                ROPE_THREADS,
                (*(operand.name for operand in operands), *sizes),
            ),
        ),
    )


def single_decodes() -> Iterator[Artifact]:
    """`attention.single_decode`, by who shares the keys, with and without the log-sum-exp."""
    for head_dim in (64, 128):
        for lse in (False, True):
            yield single_decode(head_dim, lse, in_cluster=True)
            yield single_decode(head_dim, lse, in_cluster=False)


def single_decode(head_dim: int, lse: bool, in_cluster: bool) -> Artifact:
    """Keys shared by the blocks of a cluster, or by `splits` blocks whose results a second kernel merges."""
    algorithm = f"cluster_{CLUSTER}" if in_cluster else "split"
    queries = ("1", "num_q_heads", str(head_dim))
    keys = ("kv_len", "num_kv_heads", str(head_dim))
    results = ("output", "lse") if lse else ("output",)
    heads = ("num_q_heads", "num_kv_heads")
    partial = (
        Operand("partial", "f32", ("splits", "num_q_heads", str(head_dim)), "read_write", 4, role="workspace"),
        Operand("partial_softmax", "f32", ("splits", "num_q_heads", "2"), "read_write", 4, role="workspace"),
    )
    groups = f"num_kv_heads * ceil_div(num_q_heads / num_kv_heads, {DECODE_HEADS})"
    suffix = "_lse" if lse else ""
    symbol = f"single_decode_{head_dim}"
    # Numbers that a block merges: of the block and of each of its warps.
    merge = (1 + DECODE_THREADS // 32) * DECODE_HEADS * (head_dim + 2) * 4
    attend = {"threads": DECODE_THREADS, "dynamic_shared_memory": DECODE_RING + merge}
    if in_cluster:
        parameters = ("q", "k", "v", *results, "kv_len", *heads, "scale")
        symbol = f"{symbol}_cluster_{CLUSTER}{suffix}"
        launches = (Launch(symbol, (str(CLUSTER), groups, "1"), parameters=parameters, cluster=CLUSTER, **attend),)
    else:
        kept = tuple(operand.name for operand in partial)
        parameters = ("q", "k", "v", *kept, "kv_len", *heads, "splits", "scale")
        launches = (
            Launch(f"{symbol}_shares", ("splits", groups, "1"), parameters=parameters, **attend),
            Launch(
                f"{symbol}_merge{suffix}",
                ("num_q_heads", "1", "1"),
                DECODE_THREADS,
                (*kept, *results, "num_q_heads", "splits"),
            ),
        )
    return Artifact(
        name=f"native.single_decode.bf16.{head_dim}.lse_{presence(lse)}.{algorithm}",
        family="single_decode",
        contract="attention.single_decode",
        algorithm=algorithm,
        variant={"dtype": "bf16", "head_dim": head_dim, "lse": presence(lse)},
        schedule={"threads": DECODE_THREADS, "heads": DECODE_HEADS},
        properties={"dtype": "bf16", "window": "none", "soft_cap": "none", "lse": presence(lse)},
        dimensions={
            "kv_len": (1, UNLIMITED, 1),
            "num_q_heads": (1, 1024, 1),
            "num_kv_heads": (1, 1024, 1),
            "head_dim": exactly(head_dim),
            **({} if in_cluster else {"splits": (1, 256, 1)}),
        },
        conditions=(
            ("num_q_heads % num_kv_heads", exactly(0)),
            ("num_q_heads / num_kv_heads", (1, 64, 1)),
        ),
        attributes={"scale": "f32"},
        constants={"head_dim": head_dim},
        operands=(
            Operand("q", "bf16", queries),
            Operand("k", "bf16", keys),
            Operand("v", "bf16", keys),
            Operand("output", "bf16", queries, "write", 2),
            *((Operand("lse", "f32", queries[:2], "write", 4),) if lse else ()),
            *(() if in_cluster else partial),
        ),
        launches=launches,
    )


def presence(present: bool) -> str:
    """As properties say it."""
    return "present" if present else "absent"
