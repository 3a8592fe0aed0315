"""What no kernel is faster than: bytes over the memory's rate, operations over the tensor cores', both as measured."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from device_check.shapes import Shape

COPY_BYTES = 2**31
MATRIX = 8192
WARM, REPEATS = 3, 10


@dataclass(frozen=True)
class Rates:
    """Bytes and operations of one microsecond."""

    bytes: float
    operations: float

    def floor(self, moved: float, operations: float) -> dict[str, float]:
        """Both floors of some work, in microseconds."""
        return {"bytes": moved / self.bytes, "operations": operations / self.operations}


def measure() -> Rates:
    """A large copy, read and written; a large product of random numbers, by PyTorch."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    a, b = (torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    copied, multiplied = median(lambda: target.copy_(source)), median(lambda: torch.mm(a, b, out=out))
    return Rates(2 * COPY_BYTES / copied, 2 * MATRIX**3 / multiplied)


def read_rate() -> float:
    """Bytes of a microsecond that are read and summed up, nothing being written, by PyTorch."""
    source = torch.zeros(COPY_BYTES // 4, dtype=torch.float32, device="cuda")
    return COPY_BYTES / median(lambda: torch.sum(source))


def median(work: Callable[[], object]) -> float:
    """Microseconds of some work."""
    for _ in range(WARM):
        work()
    samples = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3)
    return sorted(samples)[len(samples) // 2]


def product(rates: Rates, shape: Shape, weight_rows: int, output_bytes: int) -> dict[str, float]:
    """Floors of a matrix product with bf16 operands."""
    m, n, k = shape["m"], shape["n"], shape["k"]
    return rates.floor(2 * (weight_rows * k + m * k) + output_bytes * m * n, 2 * m * weight_rows * k)


def decode(rates: Rates, batch: int, length: int, heads: tuple[int, int], head_dim: int) -> dict[str, float]:
    """Floors of attention with one query a sequence: keys and values once, each multiplied with all query heads."""
    num_q_heads, num_kv_heads = heads
    elements = 2 * batch * length * head_dim
    return rates.floor(2 * elements * num_kv_heads, 2 * elements * num_q_heads)


def largest(floor: dict[str, float]) -> float:
    """The floor that binds."""
    return max(floor.values(), default=math.nan)
