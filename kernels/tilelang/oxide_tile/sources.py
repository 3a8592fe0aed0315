"""Hashes of what an artifact is made from, computed the same way as `artifact/source.rs` does."""

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "oxide_tile"
# Files beside the family's own that decide the CUDA text or the cubin.
TOOLCHAIN_FILES = (
    "requirements.lock",
    f"{PACKAGE}/definition.py",
    f"{PACKAGE}/expr.py",
    f"{PACKAGE}/launch.py",
    f"{PACKAGE}/lowering.py",
    f"{PACKAGE}/nvrtc.py",
)


def source_files(family: str) -> tuple[str, ...]:
    """The files that decide a family's kernels and their domains, relative to `ROOT`, sorted."""
    return tuple(sorted({*TOOLCHAIN_FILES, *family_files(family)}))


def family_files(family: str) -> set[str]:
    """A family's file and those of the families that it imports."""
    name = f"{PACKAGE}/families/{family}.py"
    found = {name}
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module == f"{PACKAGE}.families":
            imported = [alias.name for alias in node.names]
        else:
            _, in_families, rest = node.module.partition(f"{PACKAGE}.families.")
            imported = [rest] if in_families else []
        found.update(*(family_files(other) for other in imported))
    return found


def builder_files(profile: str, families: Iterable[str]) -> tuple[str, ...]:
    """The files that decide everything else in the manifests and the index, relative to `ROOT`, sorted."""
    modules = {f"{PACKAGE}/{path.name}" for path in (ROOT / PACKAGE).glob("*.py")} - set(TOOLCHAIN_FILES)
    return tuple(sorted({*modules, f"profiles/{profile}.toml", *(f"schedules/{family}.toml" for family in families)}))


def hash_files(files: Iterable[str], root: Path = ROOT) -> str:
    """SHA-256 over each file's path, a zero byte, its length as 8 little-endian bytes, and its content."""
    digest = hashlib.sha256()
    for name in files:
        content = (root / name).read_bytes()
        digest.update(name.encode() + b"\0" + len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def sha256(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
