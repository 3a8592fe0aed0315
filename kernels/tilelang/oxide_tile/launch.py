"""The launch ABI of a kernel: what the host must pass, in the manifest's terms."""

from dataclasses import dataclass
from typing import Literal

from oxide_tile.expr import Expr

Access = Literal["read", "write", "read_write"]
Role = Literal["operand", "workspace", "status"]

# TileLang's name of an element type -> (the contract's name, bytes).
ELEMENTS = {
    "bfloat16": ("bf16", 2),
    "float16": ("f16", 2),
    "float32": ("f32", 4),
    "int32": ("i32", 4),
    "uint32": ("u32", 4),
    "int64": ("i64", 8),
    "uint64": ("u64", 8),
    "uint8": ("u8", 1),
}


@dataclass(frozen=True)
class Operand:
    """A tensor argument of the prim_func, dense and row-major."""

    name: str
    element: str
    shape: tuple[Expr, ...]


@dataclass(frozen=True)
class Pointer:
    """A device pointer to the start of an operand."""

    operand: str
    element: str
    writes: bool
    size: int = 8


@dataclass(frozen=True)
class Scalar:
    """A number passed by value."""

    element: str
    value: Expr
    size: int


@dataclass(frozen=True)
class TensorMap:
    """A tensor map passed by value, with every argument of `cuTensorMapEncodeTiled`, innermost dimension first."""

    operand: str
    element: str
    dimensions: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: str
    swizzle: str
    l2_promotion: str
    fill: str
    size: int = 128


Parameter = Pointer | Scalar | TensorMap


@dataclass(frozen=True)
class Launch:
    """One kernel launch of an artifact."""

    symbol: str
    grid: tuple[Expr, Expr, Expr]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    dynamic_shared_memory: int
    cooperative: bool
    waits_on_predecessor: bool
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Lowered:
    """Everything that lowering a prim_func yields."""

    source: str
    operands: tuple[Operand, ...]
    launches: tuple[Launch, ...]
