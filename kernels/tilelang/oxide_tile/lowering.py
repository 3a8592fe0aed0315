"""TileLang prim_func to CUDA text and launch ABI. The only module that knows TileLang's internals."""

import os
import sys
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "torch_stub"))
os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
warnings.filterwarnings("ignore")

import tilelang  # noqa: E402
from tilelang import tvm  # noqa: E402
from tvm import tirx  # noqa: E402
from tvm.target import Target  # noqa: E402
from tvm.tirx.stmt_functor import post_order_visit  # noqa: E402

from oxide_tile.expr import Expr, Number, from_tir  # noqa: E402
from oxide_tile.launch import ELEMENTS, Launch, Lowered, Operand, Parameter, Pointer, Scalar, TensorMap  # noqa: E402

SITE = Path(tilelang.__file__).resolve().parent.parent
TARGET = Target({"kind": "cuda", "arch": "sm_90a"})
PACKED_CALLS = ("tirx.tvm_call_packed", "tirx.tvm_call_packed_lowered")
CREATE_TENSOR_MAP = "__tvm_tensormap_create_tiled"

# CUtensorMapDataType and the other enumerations of cuTensorMapEncodeTiled, by value.
TENSOR_MAP_ELEMENTS = {0: "u8", 2: "u32", 3: "i32", 6: "f16", 7: "f32", 9: "bf16"}
INTERLEAVES = ("none", "16b", "32b")
SWIZZLES = ("none", "32b", "64b", "128b")
L2_PROMOTIONS = ("none", "64b", "128b", "256b")
FILLS = ("zeros", "nan")


class LoweringError(RuntimeError):
    """The kernel lowered to something that the manifest cannot describe."""


def toolchain() -> str:
    """Name and version of the lowering compiler, as the manifest states it."""
    return f"tilelang {version('tilelang')}"


def lower(function: object, pass_configs: Mapping[str, object], derived: Mapping[str, Expr]) -> Lowered:
    """Lower `function`; host expressions name the contract's dimensions, `derived` names being replaced.

    A tensor argument that no kernel of this variant uses is left out of the ABI, as the device code leaves it out.
    """
    with TARGET, tvm.transform.PassContext(opt_level=3, config=dict(pass_configs)):
        artifact = tilelang.lower(function, target=TARGET)
    (host,) = artifact.host_mod.functions.values()
    device = {symbol.name_hint: kernel for symbol, kernel in artifact.device_mod.functions.items()}
    tensor_maps, launches = {}, []
    for callee, *arguments in packed_calls(host):
        if callee == CREATE_TENSOR_MAP:
            tensor_maps[arguments[0].name] = tensor_map(arguments[1:], derived)
        elif callee in device:
            launches.append(launch(callee, device[callee], arguments, tensor_maps, derived))
    used = {p.operand for launch in launches for p in launch.parameters if not isinstance(p, Scalar)}
    named = tuple(operand for operand in operands(function, derived) if operand.name in used)
    return Lowered(artifact.kernel_source, named, tuple(launches))


def packed_calls(host: object) -> list[list[object]]:
    """The host function's calls into the runtime, in order: callee name, then arguments."""
    found = []

    def visit(node: object) -> None:
        if isinstance(node, tirx.Call) and getattr(node.op, "name", "") in PACKED_CALLS:
            found.append([a.value if isinstance(a, tirx.StringImm) else a for a in node.args])

    post_order_visit(host.body, visit)
    return found


def operands(function: object, derived: Mapping[str, Expr]) -> tuple[Operand, ...]:
    """The prim_func's tensor arguments in its order."""
    buffers = (function.buffer_map[p] for p in function.params if p in function.buffer_map)
    return tuple(
        Operand(
            name=str(buffer.data.name),
            element=element(buffer.dtype),
            shape=tuple(from_tir(extent, derived) for extent in buffer.shape),
        )
        for buffer in buffers
    )


def element(dtype: object) -> str:
    """The contract's name of a TileLang element type."""
    try:
        return ELEMENTS[str(dtype)][0]
    except KeyError:
        raise LoweringError(f"element type {dtype} has no name in the manifest") from None


def tensor_map(arguments: list[object], derived: Mapping[str, Expr]) -> TensorMap:
    """Arguments: data type, rank, pointer, then dimensions, strides, box, element strides and four enumerations."""
    data_type, rank, pointer = int(arguments[0]), int(arguments[1]), arguments[2]
    values = [from_tir(a, derived) for a in arguments[3:]]
    dimensions, strides, box, steps = (values[rank * i : rank * (i + 1)] for i in range(4))
    interleave, swizzle, l2_promotion, fill = (literal(v) for v in values[4 * rank : 4 * rank + 4])
    return TensorMap(
        operand=str(pointer.name),
        element=TENSOR_MAP_ELEMENTS[data_type],
        dimensions=tuple(dimensions),
        strides=tuple(strides[1:]),  # the driver takes the innermost stride to be one element
        box=tuple(literal(v) for v in box),
        element_strides=tuple(literal(v) for v in steps),
        interleave=INTERLEAVES[interleave],
        swizzle=SWIZZLES[swizzle],
        l2_promotion=L2_PROMOTIONS[l2_promotion],
        fill=FILLS[fill],
    )


def literal(value: Expr) -> int:
    """The value of an expression that must not depend on dimensions."""
    if not isinstance(value, Number):
        raise LoweringError(f"{value} must be a constant")
    return value.value


def launch(
    symbol: str,
    kernel: object,
    arguments: list[object],
    tensor_maps: Mapping[str, TensorMap],
    derived: Mapping[str, Expr],
) -> Launch:
    """One launch: the kernel's arguments, then one value for every launch tag."""
    attributes, count = kernel.attrs, len(kernel.params)
    read_only = {int(i) for i in attributes.get("tl.readonly_param_indices", [])}
    tags = [str(tag) for tag in attributes["tirx.kernel_launch_params"]]
    extents = dict(zip(tags, (from_tir(a, derived) for a in arguments[count:]), strict=True))
    one = Number(1)
    cluster = attributes.get("cluster_dims", None)
    return Launch(
        symbol=symbol,
        grid=tuple(extents.get(f"blockIdx.{axis}", one) for axis in "xyz"),
        block=tuple(literal(extents.get(f"threadIdx.{axis}", one)) for axis in "xyz"),
        cluster=tuple(int(n) for n in cluster) if cluster else None,
        dynamic_shared_memory=literal(extents.get("tirx.use_dyn_shared_memory", Number(0))),
        cooperative=bool(attributes.get("use_cooperative_groups", 0)),
        waits_on_predecessor=bool(attributes.get("has_cuda_pdl_sync", 0)),
        parameters=tuple(
            parameter(formal, actual, index in read_only, tensor_maps, derived)
            for index, (formal, actual) in enumerate(zip(kernel.params, arguments[:count], strict=True))
        ),
    )


def parameter(
    formal: object,
    actual: object,
    read_only: bool,
    tensor_maps: Mapping[str, TensorMap],
    derived: Mapping[str, Expr],
) -> Parameter:
    """One kernel parameter."""
    annotation = formal.type_annotation
    if not isinstance(annotation, tvm.ir.PointerType):
        name, size = ELEMENTS[str(formal.dtype)]
        return Scalar(name, from_tir(actual, derived), size)
    if annotation.storage_scope == "grid_constant":
        return tensor_maps[actual.name]
    return Pointer(str(formal.name), element(annotation.element_type.dtype), writes=not read_only)
