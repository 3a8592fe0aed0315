"""What several families need."""

import tilelang.language as T

from oxide_tile.definition import Domain, Tensor
from oxide_tile.expr import Binary, Expr, Name, Number

F32 = "float32"
I32 = "int32"
U32 = "uint32"
# The contract's name of an element type -> TileLang's.
TILE_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
DTYPE_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
# Widest load of one thread.
VECTOR_BYTES = 16

PAGE_SIZE = 64
PAGING = {"kv_dtype": "bf16", "page_layout": "hnd"}

# Codes of the status word, as `artifact/status.rs` decodes them.
INDEX_OUT_OF_RANGE = 1
POSITION_OUT_OF_RANGE = 2
PAGE_OUT_OF_RANGE = 3
LENGTH_OUT_OF_RANGE = 4
NO_CANDIDATE = 5
LOGIT_NOT_A_NUMBER = 6
STATUS = Tensor((1,), "read_write", "status", 4)


def vector_lanes(dtype: str) -> int:
    """Elements that one thread loads at once."""
    return VECTOR_BYTES // DTYPE_BYTES[dtype]


def part(dimension: str, size: int) -> Expr:
    """How many pieces of `size` a dimension has, where its domain makes that exact."""
    return Binary("/", Name(dimension), Number(size))


def exactly(value: int) -> Domain:
    """The domain of a dimension that is baked in."""
    return Domain(value, value)


@T.macro
def report(status, code, index):
    """Write the status word: the highest code wins, and among its reports the lowest index."""
    T.atomic_max(status[0], code * (1 << 24) + ((1 << 24) - 1) - T.min(index, (1 << 24) - 1))


@T.macro
def overlap_predecessor():
    """Let the next kernel's blocks be placed already, and wait until the one before has ended and its writes are seen.

    Every kernel that is launched early waits here before it touches memory, so what was true for its predecessor's
    predecessors is true for it.
    """
    T.pdl_trigger()
    T.pdl_sync()
