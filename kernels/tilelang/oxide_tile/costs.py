"""What a selection rule says of the algorithms that it chooses among, and the grammar that costs are written in.

The grammar is that of `crates/oxide-infer-cuda/src/artifact/expr.rs`, which reads the same text when a plan is made.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from oxide_tile.expr import Binary, Expr, Name, Number, evaluate

# The limits of the reader in Rust.
MAX_LENGTH, MAX_DEPTH, MAX_NUMBER = 512, 32, 2**64 - 1
FUNCTIONS = ("min", "max", "ceil_div")
SUMS, PRODUCTS = "+-", "*/%"
TOKEN = re.compile(r" *(?:([0-9]+)|([a-z][a-z0-9_]*)|([+\-*/%(),])|$)", re.ASCII)


class CostError(ValueError):
    """A text that is no expression of the grammar, or a value that 64 bits cannot hold."""


@dataclass(frozen=True)
class Cost:
    """Predicted nanoseconds of an algorithm."""

    text: str
    expr: Expr

    @classmethod
    def parse(cls, text: str) -> "Cost":
        """Read an expression."""
        if len(text.encode()) > MAX_LENGTH:
            raise CostError(f"an expression of {len(text.encode())} bytes is longer than {MAX_LENGTH}")
        return cls(text, Parser(text).whole())

    def names(self) -> set[str]:
        """The dimensions that it needs."""
        return names(self.expr)


@dataclass(frozen=True)
class Choice:
    """One algorithm, or the cost of each of several: exactly one of the two."""

    algorithm: str | None = None
    costs: Mapping[str, Cost] | None = None

    def __post_init__(self) -> None:
        if (self.algorithm is None) == (not self.costs):
            raise CostError("a rule has either an algorithm or the costs of some")

    def algorithms(self) -> dict[str, Cost | None]:
        """What it names, with costs where it has them."""
        return dict(self.costs) if self.costs else {self.algorithm: None}

    def among(self, admitted: Collection[str], dimensions: Mapping[str, int]) -> str | None:
        """The algorithm that serves a request which some algorithms admit; of equal costs the first by name."""
        if not self.costs:
            return self.algorithm
        values = {name: evaluate(self.costs[name].expr, dimensions) for name in sorted(self.costs) if name in admitted}
        return min(values, key=values.get, default=None)

    def json(self) -> dict[str, object]:
        """As the index has it."""
        if not self.costs:
            return {"algorithm": self.algorithm}
        return {"costs": {name: self.costs[name].text for name in sorted(self.costs)}}


def names(expr: Expr) -> set[str]:
    """The dimensions of an expression."""
    match expr:
        case Number():
            return set()
        case Name(name):
            return {name}
        case Binary(_, left, right):
            return names(left) | names(right)


class Parser:
    """Reads an expression by descent."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.step()

    def step(self) -> None:
        """Go to the next token: `token`, which is empty at the end, begins at `start`."""
        match = TOKEN.match(self.text, self.at)
        if match is None:
            raise CostError(f"{self.text!r}: no token of the grammar at byte {self.at}")
        self.token, self.at = match[0].strip(" "), match.end()
        self.start = self.at - len(self.token)

    def unexpected(self, expected: str) -> CostError:
        """Something else stands where the grammar wants `expected`."""
        return CostError(f"{self.text!r}: expected {expected} at byte {self.start}")

    def whole(self) -> Expr:
        """The expression, with nothing after it."""
        expr = self.chain(SUMS)
        if self.token:
            raise self.unexpected("an operator or the end")
        return expr

    def chain(self, operators: str) -> Expr:
        """Operands joined by operators of one precedence, grouped from the left."""
        operand = self.atom if operators == PRODUCTS else lambda: self.chain(PRODUCTS)
        left = operand()
        while self.token and self.token in operators:
            op = self.token
            self.step()
            left = Binary(op, left, operand())
        return left

    def atom(self) -> Expr:
        """A number, a dimension, a call, or a sum in parentheses."""
        token = self.token
        if token.isdigit():
            if int(token) > MAX_NUMBER:
                raise CostError(f"{self.text!r}: {token} does not fit 64 bits")
            self.step()
            return Number(int(token))
        if token in FUNCTIONS:
            self.step()
            (left, right) = self.parenthesized(2)
            return Binary(token, left, right)
        if token[:1].isalpha():
            self.step()
            return Name(token)
        if token == "(":
            return self.parenthesized(1)[0]
        raise self.unexpected("a number, a name or `(`")

    def parenthesized(self, count: int) -> list[Expr]:
        """So many sums with commas between, in parentheses."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CostError(f"{self.text!r} nests deeper than {MAX_DEPTH}")
        found = []
        for opening in ("(", ",")[:count]:
            self.take(opening)
            found.append(self.chain(SUMS))
        self.take(")")
        self.depth -= 1
        return found

    def take(self, symbol: str) -> None:
        """Go past a symbol, which must be there."""
        if self.token != symbol:
            raise self.unexpected(f"`{symbol}`")
        self.step()
