"""The calls of the CUDA driver that a launch takes, by ctypes."""

import ctypes as c
from collections.abc import Callable, Mapping
from typing import Any

from device_check.artifact import Artifact, Dimensions, value

MAX_DYNAMIC_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION, COOPERATIVE = 4, 6, 2  # CUlaunchAttributeID
DATA_TYPES = {"u8": 0, "u32": 2, "i32": 3, "f16": 6, "f32": 7, "bf16": 9}
INTERLEAVES = {"none": 0, "16b": 1, "32b": 2}
SWIZZLES = {"none": 0, "32b": 1, "64b": 2, "128b": 3}
L2_PROMOTIONS = {"none": 0, "64b": 1, "128b": 2, "256b": 3}
FILLS = {"zeros": 0, "nan": 1}
SCALARS = {"i32": c.c_int32, "u32": c.c_uint32, "i64": c.c_int64, "u64": c.c_uint64, "f32": c.c_float}


class DriverError(RuntimeError):
    """A driver call failed."""


class Attribute(c.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", c.c_uint), ("padding", c.c_uint), ("value", c.c_uint * 16))


class Config(c.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c.c_uint * 3),
        ("block", c.c_uint * 3),
        ("shared_memory", c.c_uint),
        ("stream", c.c_void_p),
        ("attributes", c.POINTER(Attribute)),
        ("attribute_count", c.c_uint),
    )


class Driver:
    """The driver library, with the current context of the thread."""

    def __init__(self) -> None:
        self.library = c.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and turn its status into an exception."""
        status = getattr(self.library, name)(*arguments)
        if status:
            text = c.c_char_p()
            self.library.cuGetErrorName(status, c.byref(text))
            raise DriverError(f"{name}: {text.value.decode() if text.value else status}")

    def version(self) -> int:
        """What `cuDriverGetVersion` says."""
        number = c.c_int()
        self.call("cuDriverGetVersion", c.byref(number))
        return number.value


class Module:
    """An artifact loaded into the current context."""

    def __init__(self, driver: Driver, artifact: Artifact) -> None:
        self.driver, self.artifact = driver, artifact
        self.handle = c.c_void_p()
        driver.call("cuModuleLoadData", c.byref(self.handle), artifact.cubin)
        self.functions = [self.function(launch) for launch in artifact.manifest["launches"]]

    def function(self, launch: Mapping[str, Any]) -> c.c_void_p:
        """A kernel, allowed the shared memory that it needs."""
        function = c.c_void_p()
        self.driver.call("cuModuleGetFunction", c.byref(function), self.handle, launch["symbol"].encode())
        shared = c.c_int(launch["dynamic_shared_memory"])
        self.driver.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_MEMORY, shared)
        return function

    def bind(
        self, dimensions: Dimensions, addresses: Mapping[str, int], attributes: Mapping[str, float]
    ) -> Callable[[int], None]:
        """All launches of the artifact as one function of the stream."""
        self.artifact.check(dimensions)
        launches = [
            (function, *self.prepare(launch, dimensions, addresses, attributes))
            for function, launch in zip(self.functions, self.artifact.manifest["launches"], strict=True)
        ]

        def run(stream: int) -> None:
            for function, config, parameters, _keep in launches:
                config.stream = stream
                self.driver.call("cuLaunchKernelEx", c.byref(config), function, parameters, None)

        return run

    def prepare(
        self,
        launch: Mapping[str, Any],
        dimensions: Dimensions,
        addresses: Mapping[str, int],
        attributes: Mapping[str, float],
    ) -> tuple[Config, Any, list[Any]]:
        """Configuration and parameters of one launch, and what must stay alive with them."""
        values = [self.parameter(p, dimensions, addresses, attributes) for p in launch["parameters"]]
        parameters = (c.c_void_p * len(values))(*(address for address, _ in values))
        extras = launch_attributes(launch)
        array = (Attribute * len(extras))(*extras)
        config = Config(
            grid=(c.c_uint * 3)(*(value(extent, dimensions) for extent in launch["grid"])),
            block=(c.c_uint * 3)(*launch["block"]),
            shared_memory=launch["dynamic_shared_memory"],
            attributes=array,
            attribute_count=len(extras),
        )
        return config, parameters, [array, values]

    def parameter(
        self,
        parameter: Mapping[str, Any],
        dimensions: Dimensions,
        addresses: Mapping[str, int],
        attributes: Mapping[str, float],
    ) -> tuple[int, Any]:
        """Where a parameter's bytes are, and their owner."""
        if parameter["kind"] == "tensor_map":
            return self.tensor_map(parameter, dimensions, addresses[parameter["operand"]])
        if parameter["kind"] == "pointer":
            number = c.c_uint64(addresses[parameter["operand"]])
        elif parameter["kind"] == "scalar":
            number = SCALARS[parameter["element"]](value(parameter["value"], dimensions))
        elif parameter["kind"] == "settled":
            number = SCALARS[parameter["element"]](int(attributes.get("settled", 0)))
        else:
            number = SCALARS[parameter["element"]](attributes[parameter["attribute"]])
        return c.addressof(number), number

    def tensor_map(self, recipe: Mapping[str, Any], dimensions: Dimensions, address: int) -> tuple[int, Any]:
        """Encode a tensor map into memory aligned as the driver wants it."""
        rank = len(recipe["dimensions"])
        memory = (c.c_ubyte * 192)()
        aligned = (c.addressof(memory) + 63) & ~63
        self.driver.call(
            "cuTensorMapEncodeTiled",
            c.c_void_p(aligned),
            DATA_TYPES[recipe["element"]],
            rank,
            c.c_void_p(address),
            (c.c_uint64 * rank)(*(value(extent, dimensions) for extent in recipe["dimensions"])),
            (c.c_uint64 * max(rank - 1, 1))(*(value(stride, dimensions) for stride in recipe["strides"])),
            (c.c_uint32 * rank)(*recipe["box"]),
            (c.c_uint32 * rank)(*recipe["element_strides"]),
            INTERLEAVES[recipe["interleave"]],
            SWIZZLES[recipe["swizzle"]],
            L2_PROMOTIONS[recipe["l2_promotion"]],
            FILLS[recipe["fill"]],
        )
        return aligned, memory


def launch_attributes(launch: Mapping[str, Any]) -> list[Attribute]:
    """The launch attributes that a manifest asks for."""
    extras = []
    if launch["cluster"]:
        extras.append(Attribute(id=CLUSTER_DIMENSION))
        extras[-1].value[0:3] = launch["cluster"]
    for wanted, identifier in (
        (launch["programmatic_stream_serialization"], PROGRAMMATIC_STREAM_SERIALIZATION),
        (launch["cooperative"], COOPERATIVE),
    ):
        if wanted:
            extras.append(Attribute(id=identifier))
            extras[-1].value[0] = 1
    return extras
