"""Operands between guard bytes, outputs poisoned, so that a write outside or a place left unwritten shows."""

from collections.abc import Mapping
from typing import Any

import torch

from device_check.artifact import ELEMENT_BYTES, Artifact, Dimensions

GUARD_BYTES = 512
GUARD = 0xA5
POISON = 0xFF  # a NaN in every floating-point type
DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "i32": torch.int32,
    "u32": torch.int32,  # bits are all that matters here
    "i64": torch.int64,
}


class Region:
    """Device memory of one operand, guarded on both sides."""

    def __init__(self, element: str, shape: tuple[int, ...]) -> None:
        self.bytes = ELEMENT_BYTES[element]
        for extent in shape:
            self.bytes *= extent
        self.buffer = torch.full((self.bytes + 2 * GUARD_BYTES,), GUARD, dtype=torch.uint8, device="cuda")
        self.inner = self.buffer[GUARD_BYTES : GUARD_BYTES + self.bytes]
        self.inner.fill_(POISON)
        self.tensor = self.inner.view(DTYPES[element]).view(shape)
        self.before: torch.Tensor | None = None

    def remember(self) -> None:
        """Keep the content, to show later that nobody changed it."""
        self.before = self.inner.clone()

    def guarded(self) -> bool:
        """Whether both guards are whole."""
        ends = torch.cat((self.buffer[:GUARD_BYTES], self.buffer[GUARD_BYTES + self.bytes :]))
        return bool((ends == GUARD).all())

    def unchanged(self) -> bool:
        """Whether the content is what it was."""
        return self.before is None or torch.equal(self.before, self.inner)


class Regions:
    """The regions of one launch, by operand."""

    def __init__(self, artifact: Artifact, dimensions: Dimensions, inputs: Mapping[str, torch.Tensor]) -> None:
        self.regions = {
            name: Region(operand["element"], artifact.shape(name, dimensions))
            for name, operand in artifact.operands.items()
        }
        for name, region in self.regions.items():
            if name in inputs:
                region.tensor.copy_(inputs[name].view(region.tensor.shape))
            if artifact.operands[name]["role"] == "status":
                region.tensor.zero_()
            if artifact.operands[name]["access"] == "read":
                region.remember()

    def addresses(self) -> dict[str, int]:
        """Device addresses by operand."""
        return {name: region.tensor.data_ptr() for name, region in self.regions.items()}

    def tensor(self, name: str) -> torch.Tensor:
        """An operand's content."""
        return self.regions[name].tensor

    def status(self) -> int:
        """The status word, 0 if the kernel has none."""
        return int(self.regions["status"].tensor[0]) if "status" in self.regions else 0

    def faults(self) -> list[str]:
        """Operands that were written outside, or should not have been written."""
        return [
            f"{name}: {fault}"
            for name, region in self.regions.items()
            for fault, holds in (("guard", region.guarded()), ("read-only content", region.unchanged()))
            if not holds
        ]


def addresses_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Device addresses of plain tensors, for timing."""
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def record(values: list[float]) -> dict[str, Any]:
    """Median and all samples."""
    return {"median": sorted(values)[len(values) // 2], "samples": values}
