"""Manifests as the host reads them: expressions, launch geometry, verified machine code."""

import ctypes
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

Dimensions = Mapping[str, int]
GRID_LIMITS = (2**31 - 1, 65535, 65535)
ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8, "u8": 1}


@cache
def compiled(expression: str) -> Any:
    """An expression of the manifest's grammar as Python code, whose `//` is the grammar's `/`."""
    return compile(expression.replace("/", "//"), expression, "eval")


def value(expression: str, dimensions: Dimensions) -> int:
    """The value of an expression, which the manifest's arithmetic keeps from going below 0."""
    functions = {"ceil_div": lambda a, b: -(-a // b), "min": min, "max": max, "__builtins__": {}}
    result = eval(compiled(expression), functions, dict(dimensions))
    if result < 0:
        raise ValueError(f"{expression} is {result} for {dict(dimensions)}")
    return result


@dataclass(frozen=True)
class Artifact:
    """One artifact of a folder."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its unique name."""
        return self.manifest["name"]

    @property
    def kernel(self) -> str:
        """Family and kernel."""
        return self.manifest["source"]["kernel"]

    @property
    def variant(self) -> Mapping[str, Any]:
        """Compile-time variant."""
        return self.manifest["source"]["variant"]

    @property
    def schedule(self) -> Mapping[str, Any]:
        """Tile sizes."""
        return self.manifest["source"]["schedule"]

    @cached_property
    def operands(self) -> dict[str, Mapping[str, Any]]:
        """Operands by name."""
        return {operand["name"]: operand for operand in self.manifest["operands"]}

    @cached_property
    def cubin(self) -> bytes:
        """The machine code, verified against the manifest."""
        fact = self.manifest["cubin"]
        code = decompress((self.folder / fact["file"]).read_bytes(), fact["size"])
        if hashlib.sha256(code).hexdigest() != fact["sha256"]:
            raise ValueError(f"{self.name}: the cubin is not the manifest's")
        return code

    def shape(self, operand: str, dimensions: Dimensions) -> tuple[int, ...]:
        """An operand's extents."""
        return tuple(value(extent, dimensions) for extent in self.operands[operand]["shape"])

    def admits(self, dimensions: Dimensions) -> bool:
        """Whether dimensions are in the artifact's domain."""
        try:
            self.check(dimensions)
        except ValueError:
            return False
        return True

    def check(self, dimensions: Dimensions) -> None:
        """Refuse dimensions outside the artifact's domain, and launches outside the machine's limits."""
        if missing := self.manifest["dimensions"].keys() - dimensions.keys():
            raise ValueError(f"{self.name}: no {', '.join(sorted(missing))}")
        for name, domain in self.manifest["dimensions"].items():
            contains(f"{self.name}: {name}", dimensions[name], domain)
        for condition in self.manifest["conditions"]:
            contains(f"{self.name}: {condition['value']}", value(condition["value"], dimensions), condition["domain"])
        for launch in self.manifest["launches"]:
            grid = [value(extent, dimensions) for extent in launch["grid"]]
            if any(not 1 <= extent <= limit for extent, limit in zip(grid, GRID_LIMITS, strict=True)):
                raise ValueError(f"{self.name}: grid {grid}")
            for parameter in launch["parameters"]:
                if parameter["kind"] == "tensor_map":
                    check_tensor_map(self.name, parameter, dimensions)
                elif parameter["kind"] == "scalar":
                    value(parameter["value"], dimensions)


@dataclass(frozen=True)
class Selection:
    """The rules of an index, and the artifacts that they choose among."""

    rules: list[Mapping[str, Any]]
    artifacts: list[Artifact]

    @classmethod
    def of(cls, folder: Path) -> "Selection":
        """The rules and the artifacts of a folder."""
        return cls(json.loads((folder / "index.json").read_text())["selection"], load_all(folder, ""))

    def algorithm(self, artifact: Artifact, dimensions: Dimensions) -> str | None:
        """Which algorithm serves these dimensions among the siblings of an artifact."""
        contract, properties = artifact.manifest["contract"], artifact.manifest["properties"]
        for rule in (rule for rule in self.rules if rule["contract"] == contract):
            fits = all(properties.get(name) == wanted for name, wanted in rule["properties"].items())
            inside = all(limit["min"] <= dimensions[name] <= limit["max"] for name, limit in rule["when"].items())
            if fits and inside:
                choice = rule["choice"]
                return choice.get("algorithm") or self.cheapest(choice["costs"], artifact, dimensions)
        return None

    def cheapest(self, costs: Mapping[str, str], artifact: Artifact, dimensions: Dimensions) -> str | None:
        """The algorithm of least cost among those that admit the dimensions; of equal ones the first by name."""
        admitted = {
            sibling.manifest["algorithm"]
            for sibling in self.artifacts
            if all(sibling.manifest[what] == artifact.manifest[what] for what in ("contract", "properties"))
            and sibling.admits(dimensions)
        }
        values = {name: value(costs[name], dimensions) for name in sorted(costs) if name in admitted}
        return min(values, key=values.get, default=None)


def contains(what: str, number: int, domain: Mapping[str, int]) -> None:
    """Refuse a number outside a domain."""
    if not domain["min"] <= number <= domain["max"] or number % domain["multiple_of"]:
        raise ValueError(f"{what} is {number}, must be in {domain}")


def check_tensor_map(name: str, parameter: Mapping[str, Any], dimensions: Dimensions) -> None:
    """Refuse what `cuTensorMapEncodeTiled` refuses."""
    extents = [value(extent, dimensions) for extent in parameter["dimensions"]]
    strides = [value(stride, dimensions) for stride in parameter["strides"]]
    if any(not 1 <= extent <= 2**32 for extent in extents):
        raise ValueError(f"{name}: tensor map extents {extents}")
    if any(stride % 16 or not 0 < stride < 2**40 for stride in strides):
        raise ValueError(f"{name}: tensor map strides {strides}")


def load_all(folder: Path, only: str) -> list[Artifact]:
    """The artifacts of a folder whose name contains `only`, after holding the index against the manifests."""
    index = json.loads((folder / "index.json").read_text())
    found = []
    for name, listed in index["artifacts"].items():
        text = (folder / f"{name}.json").read_bytes()
        if hashlib.sha256(text).hexdigest() != listed:
            raise ValueError(f"{name}: the manifest is not the index's")
        if only in name:
            found.append(Artifact(folder, json.loads(text)))
    return found


def decompress(data: bytes, size: int) -> bytes:
    """Zstandard, through the system's library: the GPU machine's Python has no module for it."""
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_decompress.restype = ctypes.c_size_t
    library.ZSTD_decompress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    library.ZSTD_isError.argtypes = [ctypes.c_size_t]
    output = ctypes.create_string_buffer(size)
    written = library.ZSTD_decompress(output, size, data, len(data))
    if library.ZSTD_isError(written) or written != size:
        raise ValueError(f"not a zstd frame of {size} bytes")
    return output.raw
