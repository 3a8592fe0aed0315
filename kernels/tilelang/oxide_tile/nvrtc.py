"""CUDA C++ text to an sm_90a cubin with NVRTC 12.9, found among the installed wheels.

NVRTC compiles in memory: the cubin depends on the text, the headers and the options, not on any path, and it loads on
every driver since the first of CUDA 12.
"""

import ctypes
import hashlib
from importlib.metadata import version
from pathlib import Path

# TileLang's headers expect nvcc's implicit includes; NVRTC gets the freestanding ones under the same names.
PREAMBLE = b"""
#include <cuda/std/type_traits>
#include <cuda/std/utility>
#include <cuda/std/array>
namespace std { using namespace cuda::std; }
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
__device__ inline void cudaGridDependencySynchronize() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void cudaTriggerProgrammaticLaunchCompletion() { asm volatile("griddepcontrol.launch_dependents;"); }
"""
OPTIONS = ("--gpu-architecture=sm_90a", "--std=c++20", "-default-device", "-w", "-D__CUDACC_RTC__")
WHEELS = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12", "nvidia-cuda-cccl-cu12", "tilelang")


class CompileError(RuntimeError):
    """NVRTC refused the text; the message is its log."""


def toolchain() -> str:
    """Name and version of the compiler, as the manifest states it."""
    return f"nvrtc {version('nvidia-cuda-nvrtc-cu12')}"


def cache_key(source: str) -> str:
    """Names the cubin of `source`: two texts with the same key compile to the same bytes."""
    wheels = "".join(f"{wheel}=={version(wheel)}\n" for wheel in WHEELS)
    return hashlib.sha256(b"\0".join((source.encode(), PREAMBLE, repr(OPTIONS).encode(), wheels.encode()))).hexdigest()


def compile_cubin(source: str, site: Path) -> bytes:
    """Compile `source` against the headers installed in `site`."""
    library = ctypes.CDLL(str(site / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"))
    includes = (
        site / "tilelang/src",
        site / "tilelang/3rdparty/cutlass/include",
        site / "nvidia/cuda_runtime/include",
        site / "nvidia/cuda_cccl/include",
    )
    options = [option.encode() for option in (*OPTIONS, *(f"-I{path}" for path in includes))]
    program = ctypes.c_void_p()
    text = PREAMBLE + source.encode()
    check(library.nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", 0, None, None), "create program")
    try:
        failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if failed:
            log = fetch(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
            raise CompileError(log.decode(errors="replace"))
        return fetch(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def fetch(size_of: object, read: object, program: ctypes.c_void_p) -> bytes:
    """Read one of the program's outputs, which NVRTC hands over as a size and a copy."""
    size = ctypes.c_size_t()
    check(size_of(program, ctypes.byref(size)), "size of output")
    buffer = ctypes.create_string_buffer(size.value)
    check(read(program, buffer), "read output")
    return buffer.raw


def check(status: int, what: str) -> None:
    """Turn an NVRTC status into an exception."""
    if status:
        raise CompileError(f"NVRTC: {what} failed with status {status}")
