"""What several families need."""

from oxide_tile.expr import Binary, Expr, Name, Number

F32 = "float32"
I32 = "int32"
U32 = "uint32"
# The contract's name of an element type -> TileLang's.
TILE_ELEMENTS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "i32": "int32", "u32": "uint32"}
ELEMENT_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "i32": 4, "u32": 4}
# Widest load of one thread.
VECTOR_BYTES = 16


def vector_lanes(element: str) -> int:
    """Elements that one thread loads at once."""
    return VECTOR_BYTES // ELEMENT_BYTES[element]


def part(dimension: str, size: int) -> Expr:
    """How many pieces of `size` a dimension has, where its domain makes that exact."""
    return Binary("/", Name(dimension), Number(size))
