"""The machine's own limits, measured in the same run: reads, copies, and bf16 products."""

import statistics

import torch

READ_BYTES = 4 << 30
COPY_BYTES = 2 << 30
MATRIX = 8192
WARM, REPEATS = 3, 10


def measure(clock) -> dict[str, float]:
    """GB/s of reads and of copies (read and written), TFLOP/s of products, all of random numbers: medians."""
    read = READ_BYTES / median(clock, reader()) / 1e3
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    copied = 2 * COPY_BYTES / median(clock, lambda: target.copy_(source)) / 1e3
    a, b = (torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    products = 2 * MATRIX**3 / median(clock, lambda: torch.mm(a, b, out=out)) / 1e6
    return {"read_GB/s": read, "copy_GB/s": copied, "TFLOP/s": products}


def median(clock, work) -> float:
    """Microseconds of some work."""
    return statistics.median([clock.events(work) for _ in range(WARM + REPEATS)][WARM:])


def reader():
    """A kernel that reads a large tensor and keeps nothing of it but a sum for each block."""
    words = READ_BYTES // 4
    data = torch.empty(words, dtype=torch.int32, device="cuda").random_()
    try:
        from read_kernel import ELEMENTS, stream

        programs = 132 * 8
        sums = torch.empty(programs, dtype=torch.int32, device="cuda")

        def read():
            stream[(programs,)](data, sums, words, programs, num_warps=8, num_stages=4)

        read()
        assert words % ELEMENTS == 0 and int(sums.sum(dtype=torch.int32)) == int(data.sum(dtype=torch.int32))
        return read
    except Exception as error:  # Without Triton, PyTorch's sum reads nearly as fast.
        print(f"# reads are measured by torch.sum: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return lambda: data.view(torch.float32).sum()
