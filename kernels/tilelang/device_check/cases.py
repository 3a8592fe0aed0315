"""What one launch is checked with, and random tensors to make it of."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

EPSILON = 1e-6
NAN = float("nan")


@dataclass
class Case:
    """Operands of one launch and its expected outputs."""

    inputs: dict[str, torch.Tensor]
    expected: dict[str, torch.Tensor]
    attributes: dict[str, float] = field(default_factory=dict)
    # Elements of an output that the kernel must leave alone; elsewhere every element is compared.
    untouched: dict[str, torch.Tensor] = field(default_factory=dict)
    # Outputs that must have the expected bits.
    exact: tuple[str, ...] = ()
    # The expected output, by name, that takes over from the found one what rounding may decide either way.
    forgive: Callable[[str, torch.Tensor], torch.Tensor] | None = None
    # How many results rounding may decide either way.
    near: int = 0


def randn(*extents: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
    """Normal numbers on the device."""
    return (torch.randn(*extents, device="cuda") * scale).to(dtype)


def randint(low: int, high: int, extents: tuple[int, ...]) -> torch.Tensor:
    """Integers from `low` to below `high` on the device."""
    return torch.randint(low, high, extents, device="cuda", dtype=torch.int32)


def pages_of(batch: int, max_pages: int, num_pages: int) -> torch.Tensor:
    """Distinct pages for every entry of a block table."""
    return torch.randperm(num_pages)[: batch * max_pages].int().view(batch, max_pages).cuda()


def rotate(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + half) of each head."""
    low, high = x.float().chunk(2, -1)
    return torch.cat((low * turn[..., 0] - high * turn[..., 1], high * turn[..., 0] + low * turn[..., 1]), -1)
