"""Rust to PTX to machine code, with the compilers that `setup.sh` brings."""

import os
import re
import subprocess
import tempfile
from importlib.metadata import distribution, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".toolchain"
RUST = TOOLS / "root" / "usr"
CORE = TOOLS / "core"
ASSEMBLER = "nvidia-cuda-nvcc-cu12"
TARGET = (
    *("--target", "nvptx64-nvidia-cuda", "--edition", "2024", "-C", "target-cpu=sm_90a", "-C", "target-feature=+ptx87"),
    *("-C", "opt-level=3", "-C", "panic=abort"),
    # This pass copies barriers and shuffles into branches that not all threads take (rust-lang/rust#137086).
    "-Zmir-enable-passes=-JumpThreading",
)
CRATE = (
    *("--crate-name", "kernels", "--crate-type", "cdylib", "-C", "lto=fat"),
    # Loops over registers must unroll: PTX has no registers by index.
    *("-C", "llvm-args=-unroll-threshold=3000"),
    # The "linker" does nothing, but asking for it is what makes the compiler take core along.
    *("-C", "linker=true"),
)


class CompileError(RuntimeError):
    """A compiler refused its input, or made of it what cannot be launched."""


def lowering() -> str:
    """What makes PTX, as manifests state it."""
    words = run("rustc", "--version", "--verbose")
    release, llvm = (re.search(rf"^{what}: (.*)$", words, re.MULTILINE) for what in ("release", "LLVM version"))
    if release is None or llvm is None:
        raise CompileError(f"rustc does not say its version: {words}")
    return f"rustc {release[1]} (LLVM {llvm[1]})"


def assembler() -> str:
    """What makes machine code, as manifests state it."""
    return f"ptxas {version(ASSEMBLER)}"


def build_core() -> None:
    """Compile the core library for the device."""
    library = next((RUST / "src").glob("rustc-*/library/core/src/lib.rs"))
    compiler_builtins = CORE / "compiler_builtins.rs"
    compiler_builtins.write_text("#![feature(compiler_builtins)]\n#![compiler_builtins]\n#![no_std]\n")
    for name, source in (("core", library), ("compiler_builtins", compiler_builtins)):
        options = ("--crate-name", name, "--crate-type", "lib", "-Zforce-unstable-if-unmarked", "-Awarnings")
        run("rustc", *TARGET, *options, "-L", CORE, "--out-dir", CORE, source)


def ptx(family: str) -> str:
    """The PTX of one family's kernels."""
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "kernels.ptx"
        options = ("--cfg", f'family="{family}"', "-L", CORE, "--emit", f"asm={text},link={scratch}/nothing")
        # The compiler leaves files of one name in its working directory for a while, whatever the family.
        run("rustc", *TARGET, *CRATE, *options, ROOT / "src/lib.rs", folder=scratch)
        return text.read_text()


def entries(text: str) -> dict[str, str]:
    """The PTX of each kernel by its symbol, with what all of them share before it."""
    header, *kernels = re.split(r"^(?=\.visible \.entry )", text, flags=re.MULTILINE)
    if ".func" in text:
        raise CompileError(f"a kernel calls a function, a panic perhaps: {re.search(r'[.]func.*', text)[0]}")
    header = "".join(line for line in header.splitlines(keepends=True) if not line.lstrip().startswith("//"))
    return {re.match(r"\.visible \.entry (\w+)", kernel)[1]: header + kernel for kernel in kernels}


def cubin(kernels: list[str]) -> bytes:
    """Machine code with these kernels."""
    header = kernels[0][: kernels[0].index(".visible .entry ")]
    with tempfile.TemporaryDirectory() as scratch:
        source, result = Path(scratch) / "kernels.ptx", Path(scratch) / "kernels.cubin"
        source.write_text(header + "".join(kernel.removeprefix(header) for kernel in kernels))
        run("ptxas", "-arch=sm_90a", source, "-o", result)
        return result.read_bytes()


def run(tool: str, *arguments: object, folder: str | None = None) -> str:
    """What a compiler prints; its errors as an exception."""
    found = {
        "rustc": RUST / "bin/rustc",
        "ptxas": Path(str(distribution(ASSEMBLER).locate_file("nvidia/cuda_nvcc/bin/ptxas"))),
    }[tool]
    found.chmod(0o755)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(RUST / "lib/x86_64-linux-gnu"), "RUSTC_BOOTSTRAP": "1"}
    done = subprocess.run([found, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise CompileError(f"{tool} {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
    return done.stdout
