"""The manifest of an artifact: `docs/artifacts.md` documents every field."""

import itertools
import json
import math
import re
from collections.abc import Mapping
from importlib.metadata import version

from oxide_tile import elf, sources
from oxide_tile.definition import Definition, DefinitionError, Domain
from oxide_tile.expr import Expr, evaluate, text
from oxide_tile.launch import Launch, Lowered, Parameter, Pointer, Scalar, TensorMap
from oxide_tile.profile import Job, Profile

SCHEMA = 1
ABI = 1
# NVRTC 12 cubins load on every driver of CUDA 12.0 (525) and newer.
MINIMUM_DRIVER = 12000
ZSTD_LEVEL = 19
MAX_LINE = 110
# The scalar that says whether keys are settled when a kernel begins, as `runtime/operator.rs` promises them.
SETTLED = "settled"


class ManifestError(ValueError):
    """The lowered kernel, its cubin and its definition disagree."""


def manifest(job: Job, profile: Profile, definition: Definition, lowered: Lowered, cubin: bytes) -> dict[str, object]:
    """The manifest as a JSON object."""
    dimensions = narrowed(job, definition)
    check_operands(definition, lowered, dimensions)
    entries = elf.entries(cubin)
    return {
        "schema": SCHEMA,
        "abi": ABI,
        "name": job.name,
        "contract": definition.contract,
        "contract_version": definition.contract_version,
        "algorithm": job.algorithm,
        "architecture": profile.architecture,
        "minimum_driver": MINIMUM_DRIVER,
        "toolchain": toolchain(),
        "source": source(job),
        "cubin": {"file": f"{job.name}.cubin.zst", "sha256": sources.sha256(cubin), "size": len(cubin)},
        "properties": dict(definition.properties),
        "dimensions": {name: domain_json(domain) for name, domain in dimensions.items()},
        "conditions": [
            {"value": text(condition.value), "domain": domain_json(condition.domain)}
            for condition in definition.conditions
        ],
        "attributes": dict(definition.attributes),
        "constants": dict(definition.constants),
        "operands": operands_json(definition, lowered),
        "launches": [launch_json(launch, definition, entries) for launch in lowered.launches],
        "numerics": {"accumulation": definition.accumulation, "rounding": "nearest_even"},
        "determinism": definition.determinism,
    }


def toolchain() -> dict[str, str]:
    """Versions of everything that decides the bytes."""
    return {
        "lowering": f"tilelang {version('tilelang')}",
        "compiler": f"nvrtc {version('nvidia-cuda-nvrtc-cu12')}",
        "compression": f"zstd level {ZSTD_LEVEL}",
    }


def source(job: Job) -> dict[str, object]:
    """Everything that decides the kernel and its domain."""
    files = sources.source_files(job.family)
    return {
        "files": list(files),
        "sha256": sources.hash_files(files),
        "kernel": f"{job.family}.{job.kernel}",
        "variant": dict(job.variant),
        "schedule": dict(job.schedule),
    }


def encode(value: object) -> bytes:
    """JSON text with one key a line, so that a change reads well in a diff, and lists and objects of scalars on one."""
    text = re.sub(r"[\[{][^\[\]{}]*[\]}]", one_line, json.dumps(value, indent=1))
    if json.loads(text) != value:
        raise ManifestError("a string that looks like a list cannot be put on one line")
    return (text + "\n").encode()


def one_line(match: re.Match[str]) -> str:
    """An innermost list or object on one line, if it is short."""
    joined = re.sub(r"\s*\n\s*", " ", match[0]).replace("[ ", "[").replace(" ]", "]")
    return joined if len(joined) <= MAX_LINE else match[0]


def narrowed(job: Job, definition: Definition) -> dict[str, Domain]:
    """The kernel's dimension limits, with the profile's narrower domains in their place."""
    for name, domain in job.domain.items():
        limit = definition.dimensions.get(name)
        if limit is None:
            raise DefinitionError(f"{job.name} has no dimension {name}")
        if not domain.within(limit):
            raise DefinitionError(f"{job.name}: {name} is {domain} in the profile, the kernel admits {limit}")
    return {name: job.domain.get(name, limit) for name, limit in definition.dimensions.items()}


def check_operands(definition: Definition, lowered: Lowered, dimensions: Mapping[str, Domain]) -> None:
    """Declared operands must be the lowered ones, and have as many elements at sampled dimensions."""
    unknown = {operand.name for operand in lowered.operands} - set(definition.operands)
    if unknown:
        raise ManifestError(f"operand {sorted(unknown)[0]} is lowered and not declared")
    names = list(dimensions)
    points = itertools.islice(itertools.product(*(dimensions[name].samples() for name in names)), 200)
    for point in (dict(zip(names, values, strict=True)) for values in points):
        for operand in lowered.operands:
            shape = definition.operands[operand.name].extents()
            if elements(shape, point) != elements(operand.shape, point):
                raise ManifestError(f"operand {operand.name}: declared and lowered sizes differ at {point}")


def elements(shape: tuple[Expr, ...], point: Mapping[str, int]) -> int:
    """The number of elements of a shape."""
    return math.prod(evaluate(extent, point) for extent in shape)


def domain_json(domain: Domain) -> dict[str, int]:
    """A dimension's domain."""
    return {"min": domain.min, "max": domain.max, "multiple_of": domain.multiple_of}


def operands_json(definition: Definition, lowered: Lowered) -> list[dict[str, object]]:
    """The operands in the prim_func's order, each with the access that the kernels were seen to make."""
    written = {
        parameter.operand
        for launch in lowered.launches
        for parameter in launch.parameters
        if isinstance(parameter, Pointer) and parameter.writes
    }
    rows = []
    for operand in lowered.operands:
        tensor = definition.operands[operand.name]
        if tensor.access == "read" and operand.name in written:
            raise ManifestError(f"operand {operand.name} is declared read-only and is written")
        rows.append(
            {
                "name": operand.name,
                "role": tensor.role,
                "element": operand.element,
                "shape": [text(extent) for extent in tensor.extents()],
                "access": tensor.access,
                "alignment": tensor.alignment,
                "same_as": tensor.same_as,
            }
        )
    return rows


def launch_json(launch: Launch, definition: Definition, entries: Mapping[str, elf.Entry]) -> dict[str, object]:
    """One launch, checked against the cubin's own account of the kernel."""
    entry = entries.get(launch.symbol)
    if entry is None:
        raise ManifestError(f"the cubin has no kernel {launch.symbol}")
    sizes = tuple(parameter.size for parameter in launch.parameters)
    if entry.parameter_sizes != sizes:
        raise ManifestError(f"{launch.symbol}: parameters of {entry.parameter_sizes} bytes in the cubin, not {sizes}")
    return {
        "symbol": launch.symbol,
        "grid": [text(extent) for extent in launch.grid],
        "block": list(launch.block),
        "cluster": list(launch.cluster) if launch.cluster else None,
        "dynamic_shared_memory": launch.dynamic_shared_memory,
        "cooperative": launch.cooperative,
        "programmatic_stream_serialization": launch.waits_on_predecessor,
        "parameters": [parameter_json(parameter, definition) for parameter in launch.parameters],
        "resources": {
            "registers": entry.registers,
            "static_shared_memory": entry.static_shared_memory,
            "stack": entry.stack_bytes,
        },
    }


def parameter_json(parameter: Parameter, definition: Definition) -> dict[str, object]:
    """One kernel parameter."""
    match parameter:
        case Pointer(operand, element):
            return {"kind": "pointer", "operand": operand, "element": element}
        case Scalar(element, value):
            name = text(value)
            if name == SETTLED:
                return {"kind": "settled", "element": element}
            if name in definition.attributes:
                return {"kind": "attribute", "attribute": name, "element": element}
            return {"kind": "scalar", "element": element, "value": name}
        case TensorMap():
            return {
                "kind": "tensor_map",
                "operand": parameter.operand,
                "element": parameter.element,
                "dimensions": [text(extent) for extent in parameter.dimensions],
                "strides": [text(stride) for stride in parameter.strides],
                "box": list(parameter.box),
                "element_strides": list(parameter.element_strides),
                "interleave": parameter.interleave,
                "swizzle": parameter.swizzle,
                "l2_promotion": parameter.l2_promotion,
                "fill": parameter.fill,
            }
