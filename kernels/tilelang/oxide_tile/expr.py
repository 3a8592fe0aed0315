"""Host expressions of a lowered kernel, written in the manifest's grammar.

The grammar is that of `crates/oxide-infer-cuda/src/artifact/expr.rs`: unsigned integers, dimension names,
`+ - * / %`, parentheses, `min(a, b)`, `max(a, b)` and `ceil_div(a, b)`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}
BINARY_NODES = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "FloorDiv": "/",
    "Div": "/",
    "FloorMod": "%",
    "Mod": "%",
    "Min": "min",
    "Max": "max",
}


class UnsupportedExpressionError(ValueError):
    """A host expression that the manifest's grammar cannot say."""


class Arithmetic:
    """Operators that build expressions, for the shapes that kernels declare."""

    def __add__(self, other: "Expr | int") -> "Expr":
        return binary("+", self, lift(other))

    def __sub__(self, other: "Expr | int") -> "Expr":
        return binary("-", self, lift(other))

    def __mul__(self, other: "Expr | int") -> "Expr":
        return binary("*", self, lift(other))

    def __floordiv__(self, other: "Expr | int") -> "Expr":
        return binary("/", self, lift(other))

    def __mod__(self, other: "Expr | int") -> "Expr":
        return binary("%", self, lift(other))


@dataclass(frozen=True)
class Number(Arithmetic):
    """An unsigned integer."""

    value: int


@dataclass(frozen=True)
class Name(Arithmetic):
    """A dimension."""

    name: str


@dataclass(frozen=True)
class Binary(Arithmetic):
    """`left op right`, or `op(left, right)` for `min`, `max` and `ceil_div`."""

    op: str
    left: "Expr"
    right: "Expr"


Expr = Number | Name | Binary


def lift(value: "Expr | int | str") -> Expr:
    """An integer or a dimension's name as an expression."""
    if isinstance(value, int):
        return number(value)
    return Name(value) if isinstance(value, str) else value


def from_tir(node: object, derived: Mapping[str, Expr]) -> Expr:
    """Convert a TIR expression; names in `derived` are replaced by what they stand for."""
    if isinstance(node, bool | int):
        return number(int(node))
    kind = type(node).__name__
    if kind == "IntImm":
        return number(int(node.value))
    if kind == "Var":
        return derived.get(str(node.name), Name(str(node.name)))
    if kind == "Cast":
        return from_tir(node.value, derived)
    if kind in BINARY_NODES:
        return binary(BINARY_NODES[kind], from_tir(node.a, derived), from_tir(node.b, derived))
    if kind == "Call":
        return from_call(node, derived)
    raise UnsupportedExpressionError(f"{kind}: {node}")


def from_call(node: object, derived: Mapping[str, Expr]) -> Expr:
    """Convert the shifts that lowering makes of multiplications and divisions by powers of two."""
    name = getattr(node.op, "name", "")
    if name not in ("tirx.shift_right", "tirx.shift_left"):
        raise UnsupportedExpressionError(f"call of {name}: {node}")
    value, amount = (from_tir(argument, derived) for argument in node.args)
    if not isinstance(amount, Number):
        raise UnsupportedExpressionError(f"shift by a variable amount: {node}")
    return binary("/" if name.endswith("right") else "*", value, Number(1 << amount.value))


def number(value: int) -> Number:
    """An integer of the grammar, which has no negative numbers."""
    if value < 0:
        raise UnsupportedExpressionError(f"negative number {value}")
    return Number(value)


def binary(op: str, left: Expr, right: Expr) -> Expr:
    """Build `left op right`, folding constants, neutral elements and the rounding-up division idiom."""
    if isinstance(left, Number) and isinstance(right, Number):
        return Number(FOLD[op](left.value, right.value))
    if op == "*" and isinstance(left, Number):
        left, right = right, left
    if isinstance(right, Number):
        if (op in "*/" and right.value == 1) or (op in "+-" and right.value == 0):
            return left
        if op == "/" and isinstance(left, Binary) and left.op == "+" and left.right == Number(right.value - 1):
            return Binary("ceil_div", left.left, right)
        if op in ("*", "/") and isinstance(left, Binary) and isinstance(left.right, Number):
            return scaled(op, left, right.value)
    return Binary(op, left, right)


def scaled(op: str, left: Binary, by: int) -> Expr:
    """Fold `(x * a) * b` and the exact cases of `(x / a) * b` and `(x * a) / b` (dimensions divide evenly)."""
    inner = left.right.value
    if op == "*" and left.op == "*":
        return binary("*", left.left, Number(inner * by))
    if op == "/" and left.op == "*" and inner % by == 0:
        return binary("*", left.left, Number(inner // by))
    return Binary(op, left, Number(by))


FOLD: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: number(a - b).value,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
    "ceil_div": lambda a, b: -(-a // b),
}


def text(expr: Expr) -> str:
    """The expression in the manifest's grammar, with no parenthesis that precedence makes needless."""
    match expr:
        case Number(value):
            return str(value)
        case Name(name):
            return name
        case Binary(op, left, right) if op in PRECEDENCE:
            level = PRECEDENCE[op]
            return f"{wrapped(left, level)} {op} {wrapped(right, level + 1)}"
        case Binary(op, left, right):
            return f"{op}({text(left)}, {text(right)})"


def wrapped(expr: Expr, level: int) -> str:
    """`text`, in parentheses when the operator binds less tightly than `level`."""
    loose = isinstance(expr, Binary) and PRECEDENCE.get(expr.op, 9) < level
    return f"({text(expr)})" if loose else text(expr)


def evaluate(expr: Expr, dimensions: Mapping[str, int]) -> int:
    """The value under `dimensions`; the same arithmetic as the Rust evaluator."""
    match expr:
        case Number(value):
            return value
        case Name(name):
            return dimensions[name]
        case Binary(op, left, right):
            return FOLD[op](evaluate(left, dimensions), evaluate(right, dimensions))
