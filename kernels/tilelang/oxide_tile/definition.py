"""What a kernel family states about a kernel, beyond its code."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from oxide_tile.expr import Expr, lift
from oxide_tile.launch import Access, Role

Determinism = Literal["run_to_run", "batch_invariant"]
# The largest value of a dimension that nothing else limits; products of two still fit kernel index arithmetic.
UNLIMITED = 2**31 - 1


class DefinitionError(ValueError):
    """A schedule, variant or domain that the kernel does not admit."""


@dataclass(frozen=True)
class Domain:
    """The values that a dimension may take."""

    min: int = 1
    max: int = UNLIMITED
    multiple_of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.max or self.multiple_of < 1:
            raise DefinitionError(f"empty domain {self}")

    def within(self, outer: "Domain") -> bool:
        """Whether every value of this domain is one of `outer`'s."""
        return self.min >= outer.min and self.max <= outer.max and self.multiple_of % outer.multiple_of == 0

    def samples(self) -> list[int]:
        """A few values of the domain, its ends among them."""
        first = -(-self.min // self.multiple_of) * self.multiple_of
        last = self.max // self.multiple_of * self.multiple_of
        middle = math.isqrt(max(first, 1) * max(last, 1)) // self.multiple_of * self.multiple_of
        return sorted({first, max(middle, first), last})


@dataclass(frozen=True)
class Tensor:
    """An operand as the contract sees it: dense, row-major, starting at a multiple of `alignment` bytes.

    `same_as` names the operand whose region this one may also be, exactly; any other overlap is an error.
    """

    shape: tuple[Expr | int | str, ...]
    access: Access = "read"
    role: Role = "operand"
    alignment: int = 16
    same_as: str | None = None

    def extents(self) -> tuple[Expr, ...]:
        """The shape as expressions."""
        return tuple(lift(extent) for extent in self.shape)


@dataclass(frozen=True)
class Condition:
    """A domain of something computed from several dimensions."""

    value: Expr
    domain: Domain


@dataclass(frozen=True)
class Definition:
    """One kernel with one schedule."""

    contract: str
    function: object
    properties: Mapping[str, str | int]
    dimensions: Mapping[str, Domain]
    operands: Mapping[str, Tensor]
    conditions: tuple[Condition, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)
    derived: Mapping[str, Expr] = field(default_factory=dict)
    determinism: Determinism = "batch_invariant"
    accumulation: str = "f32"
    pass_configs: Mapping[str, object] = field(default_factory=dict)
    contract_version: int = 1
