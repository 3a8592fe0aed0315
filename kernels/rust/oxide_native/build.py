"""Writes manifests, machine code and index of all artifacts."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import zstandard
from oxide_tile import elf
from oxide_tile.manifest import ABI, SCHEMA, encode
from oxide_tile.sources import hash_files, sha256

from oxide_native import toolchain
from oxide_native.families import VECTOR, Artifact, Domain, Launch, Operand, artifacts
from oxide_native.toolchain import ROOT

ARCHITECTURE = "sm_90a"
INDEX = "index.json"
INDEX_SCHEMA = 2
# What ptxas 12 makes loads on every driver of CUDA 12.0 (525) and newer.
MINIMUM_DRIVER = 12000
ZSTD_LEVEL = 19
# The files that decide manifests and index, beside those that decide the machine code.
BUILDER = ("oxide_native/__main__.py", "oxide_native/build.py", "oxide_native/families.py")


class BuildError(ValueError):
    """A kernel is not what its artifact says."""


def build(output: Path, workers: int, report: Callable[[str], None]) -> None:
    """Compile every family, and write what came of it; files of other artifacts are removed."""
    all_artifacts = artifacts()
    families = sorted({artifact.family for artifact in all_artifacts})
    made: dict[str, bytes] = {}
    with ThreadPoolExecutor(workers) as pool:
        texts = dict(zip(families, pool.map(toolchain.ptx, families), strict=True))
        kernels = {family: toolchain.entries(text) for family, text in texts.items()}
        unused = {symbol for entries in kernels.values() for symbol in entries} - symbols(all_artifacts)
        if unused:
            raise BuildError(f"no artifact launches {', '.join(sorted(unused))}")
        cubins = pool.map(lambda artifact: cubin_of(artifact, kernels[artifact.family]), all_artifacts)
        for artifact, cubin in zip(all_artifacts, cubins, strict=True):
            made[f"{artifact.name}.json"] = encode(manifest(artifact, cubin))
            made[f"{artifact.name}.cubin.zst"] = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(cubin)
            report(f"{artifact.name}: {len(cubin)} bytes")
    made[INDEX] = encode(index(all_artifacts, made))
    output.mkdir(parents=True, exist_ok=True)
    for stray in {path.name for path in output.iterdir()} - set(made):
        (output / stray).unlink()
    for name, data in made.items():
        (output / name).write_bytes(data)
    report(f"{len(all_artifacts)} artifacts in {output}, {sum(map(len, made.values()))} bytes")


def symbols(all_artifacts: list[Artifact]) -> set[str]:
    """Every kernel that is launched."""
    return {launch.symbol for artifact in all_artifacts for launch in artifact.launches}


def cubin_of(artifact: Artifact, kernels: dict[str, str]) -> bytes:
    """Machine code with the artifact's kernels alone."""
    missing = {launch.symbol for launch in artifact.launches} - set(kernels)
    if missing:
        raise BuildError(f"{artifact.name}: there is no kernel {', '.join(sorted(missing))}")
    return toolchain.cubin([kernels[launch.symbol] for launch in artifact.launches])


def manifest(artifact: Artifact, cubin: bytes) -> dict[str, Any]:
    """The manifest as a JSON object; `docs/artifacts.md` documents every field."""
    entries = elf.entries(cubin)
    return {
        "schema": SCHEMA,
        "abi": ABI,
        "name": artifact.name,
        "contract": artifact.contract,
        "contract_version": 1,
        "algorithm": artifact.algorithm,
        "architecture": ARCHITECTURE,
        "minimum_driver": MINIMUM_DRIVER,
        "toolchain": {
            "lowering": toolchain.lowering(),
            "compiler": toolchain.assembler(),
            "compression": f"zstd level {ZSTD_LEVEL}",
        },
        "source": {
            "files": artifact.files,
            "sha256": hash_files(artifact.files, ROOT),
            "kernel": f"{artifact.family}.{artifact.launches[0].symbol}",
            "variant": artifact.variant,
            "schedule": artifact.schedule,
        },
        "cubin": {"file": f"{artifact.name}.cubin.zst", "sha256": sha256(cubin), "size": len(cubin)},
        "properties": artifact.properties,
        "dimensions": {name: domain_json(domain) for name, domain in artifact.dimensions.items()},
        "conditions": [{"value": value, "domain": domain_json(domain)} for value, domain in artifact.conditions],
        "attributes": artifact.attributes,
        "constants": artifact.constants,
        "operands": [operand_json(operand) for operand in artifact.operands],
        "launches": [launch_json(launch, artifact, entries) for launch in artifact.launches],
        "numerics": {"accumulation": "f32", "rounding": "nearest_even"},
        "determinism": artifact.determinism,
    }


def domain_json(domain: Domain) -> dict[str, int]:
    """A dimension's domain."""
    least, most, step = domain
    return {"min": least, "max": most, "multiple_of": step}


def operand_json(operand: Operand) -> dict[str, Any]:
    """One operand."""
    return {
        "name": operand.name,
        "role": operand.role,
        "element": operand.element,
        "shape": list(operand.shape),
        "access": operand.access,
        "alignment": operand.alignment or VECTOR,
        "same_as": operand.same_as,
    }


def launch_json(launch: Launch, artifact: Artifact, entries: dict[str, elf.Entry]) -> dict[str, Any]:
    """One launch, checked against the machine code's own account of the kernel."""
    entry = entries[launch.symbol]
    parameters = [parameter_json(name, artifact) for name in launch.parameters]
    sizes = tuple(8 if parameter["kind"] == "pointer" else 4 for parameter in parameters)
    if entry.parameter_sizes != sizes:
        raise BuildError(f"{launch.symbol} takes parameters of {entry.parameter_sizes} bytes, not {sizes}")
    return {
        "symbol": launch.symbol,
        "grid": list(launch.grid),
        "block": [launch.threads, 1, 1],
        "cluster": [launch.cluster, 1, 1] if launch.cluster else None,
        "dynamic_shared_memory": launch.dynamic_shared_memory,
        "cooperative": False,
        # Every kernel waits for its predecessor by itself.
        "programmatic_stream_serialization": True,
        "parameters": parameters,
        "resources": {
            "registers": entry.registers,
            "static_shared_memory": entry.static_shared_memory,
            "stack": entry.stack_bytes,
        },
    }


def parameter_json(name: str, artifact: Artifact) -> dict[str, str]:
    """One kernel parameter: what a name stands for."""
    elements = {operand.name: operand.element for operand in artifact.operands}
    if name in elements:
        return {"kind": "pointer", "operand": name, "element": elements[name]}
    if name in artifact.attributes:
        return {"kind": "attribute", "attribute": name, "element": artifact.attributes[name]}
    return {"kind": "scalar", "element": "u32", "value": name}


def index(all_artifacts: list[Artifact], made: dict[str, bytes]) -> dict[str, Any]:
    """Every artifact with the hash of its manifest. No rule selects one: they are chosen by name."""
    return {
        "schema": INDEX_SCHEMA,
        "architecture": ARCHITECTURE,
        "source": {"files": list(BUILDER), "sha256": hash_files(BUILDER, ROOT)},
        "artifacts": {artifact.name: sha256(made[f"{artifact.name}.json"]) for artifact in all_artifacts},
        "selection": [],
    }
