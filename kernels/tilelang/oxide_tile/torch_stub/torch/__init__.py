"""Stands in for torch while kernels are compiled.

TileLang imports torch for its dtype objects and asks a few submodules whether a device is present. Nothing else of
torch takes part in lowering, so these names are enough and half a gigabyte of wheels is not installed.
"""

import sys
import types

__version__ = "0.0.0+compile-only"

DTYPES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 bfloat16 complex64 "
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"
).split()
ALIASES = {
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
}


class dtype:  # noqa: N801
    """A named element type."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class Tensor:
    """Only ever the second argument of `isinstance`."""


class device:  # noqa: N801
    """Only ever an annotation or the second argument of `isinstance`."""


class Size(tuple):
    """Only ever the second argument of `isinstance`."""


class Generator:
    """Only ever an annotation."""


class NoDevice(types.ModuleType):
    """A device submodule of a machine that has none."""

    def is_available(self) -> bool:
        """No accelerator takes part in a build."""
        return False

    def device_count(self) -> int:
        """No accelerator takes part in a build."""
        return 0

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def submodule(name: str, kind: type = types.ModuleType, **members: object) -> types.ModuleType:
    """Make `torch.name` importable."""
    module = kind(f"torch.{name}")
    module.__path__ = []
    vars(module).update(members)
    sys.modules[module.__name__] = module
    return module


globals().update({name: dtype(name) for name in DTYPES})
globals().update({alias: globals()[name] for alias, name in ALIASES.items()})
version = submodule("version", hip=None, cuda=None)
cuda = submodule("cuda", NoDevice)
mps = submodule("mps", NoDevice)
backends = submodule("backends", mps=mps)
nn = submodule("nn", Module=object)
cpp_extension = submodule("utils.cpp_extension", include_paths=lambda *_args, **_options: [])
utils = submodule("utils", cpp_extension=cpp_extension)
