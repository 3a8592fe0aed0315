"""Correctness of artifacts: values, guards, status words, and which results have the same bits."""

from collections.abc import Mapping
from typing import Any

import torch

from device_check import inputs, shapes
from device_check.artifact import Artifact
from device_check.cases import Case
from device_check.driver import Module
from device_check.memory import POISON, Regions
from device_check.shapes import Shape

# Norm of the error over the norm of the result: rounding to bf16 alone gives about 0.0017.
TOLERANCES = {"bf16": 5e-3, "f16": 1e-3, "f32": 1e-3}
FAR = 2**30


def launch(module: Module, shape: Shape, case: Case) -> Regions:
    """Run once, on fresh guarded memory."""
    regions = Regions(module.artifact, shape, case.inputs)
    module.bind(shape, regions.addresses(), case.attributes)(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return regions


def check_values(module: Module) -> list[dict[str, Any]]:
    """Every shape of the matrix: one row each."""
    rows = []
    for shape in shapes.correctness(module.artifact):
        torch.manual_seed(len(rows))
        case = inputs.make(module.artifact, shape)
        regions = launch(module, shape, case)
        again = launch(module, shape, case)
        faults = regions.faults() + differences(module.artifact, regions, case)
        if regions.status():
            faults.append(f"status word {regions.status():#010x}")
        if not all(same_bits(regions.tensor(name), again.tensor(name)) for name in case.expected):
            faults.append("two runs differ")
        rows.append({"shape": shape, "faults": faults, "errors": errors(regions, case), "near": case.near})
    return rows


def differences(artifact: Artifact, regions: Regions, case: Case) -> list[str]:
    """Outputs that are not as expected."""
    faults = []
    for name, expected in case.expected.items():
        found = regions.tensor(name)
        if case.forgive is not None:
            expected = case.forgive(name, found)
        left_alone = case.untouched.get(name)
        if left_alone is not None:
            poison = torch.full_like(found.view(torch.uint8), POISON).view(found.dtype)
            if not same_bits(found[left_alone], poison[left_alone]):
                faults.append(f"{name}: written where it must not be")
            found, expected = found[~left_alone], expected[~left_alone]
        if name in case.exact:
            if not torch.equal(found, expected.to(found.dtype)):
                faults.append(f"{name}: not the expected bits")
        elif not error(found, expected) <= TOLERANCES[artifact.operands[name]["element"]]:
            faults.append(f"{name}: error {error(found, expected):.2e}")
    return faults


def errors(regions: Regions, case: Case) -> dict[str, float]:
    """The error of every output that need not be exact."""
    result = {}
    for name, expected in case.expected.items():
        if name not in case.exact:
            kept = ~case.untouched[name] if name in case.untouched else slice(None)
            result[name] = error(regions.tensor(name)[kept], expected[kept])
    return result


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of the expected; NaN if any element is."""
    norm = expected.double().norm().item()
    return (found.double() - expected.double()).norm().item() / (norm or 1.0)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equality that tells NaNs apart too."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def check_status(module: Module) -> list[dict[str, Any]]:
    """Bad input: the status word says what and where, and nothing is written outside the operands."""
    rows = []
    for name, spoil, codes in bad_inputs(module.artifact):
        shape = list(shapes.correctness(module.artifact))[1]
        case = inputs.make(module.artifact, shape)
        index = spoil(case.inputs, shape)
        regions = launch(module, shape, case)
        word = regions.status()
        faults = regions.faults()
        if word >> 24 not in codes or 0xFF_FFFF - (word & 0xFF_FFFF) != index:
            faults.append(f"status word {word:#010x}, expected one of codes {codes} at {index}")
        rows.append({"bad": name, "faults": faults})
    return rows


def bad_inputs(artifact: Artifact) -> list[tuple[str, Any, tuple[int, ...]]]:
    """What an artifact's operands can be spoiled with."""
    found = list(BAD_INPUTS.get(artifact.kernel, ()))
    return [*found, ("slot past the sequences", bad_slot, (1,))] if "slots" in artifact.operands else found


def bad_token(tensors: Mapping[str, torch.Tensor], shape: Shape) -> int:
    """A token past the vocabulary."""
    tensors["ids"][2] = shape["vocab_size"]
    if "slots" in tensors:
        tensors["slots"][2] = -1
    return 2


def bad_page(tensors: Mapping[str, torch.Tensor], _shape: Shape) -> int:
    """A page past the pool in every entry of the second sequence."""
    tensors["block_table"][1] = FAR
    if "positions" in tensors:
        return int(tensors["query_start"][1])
    tensors["kv_len"][1] = 1 if "query_start" not in tensors else tensors["kv_len"][1].clamp(min=1)
    return 1


def bad_position(tensors: Mapping[str, torch.Tensor], _shape: Shape) -> int:
    """A token before the beginning."""
    tensors["positions"][3] = -1
    return 3


def late_start(tensors: Mapping[str, torch.Tensor], _shape: Shape) -> int:
    """Starts that do not begin at 0."""
    tensors["query_start"][0] = 1
    return 0


def falling_start(tensors: Mapping[str, torch.Tensor], _shape: Shape) -> int:
    """A start after the one that follows it; it is within the tokens, so the one that follows is to blame."""
    tensors["query_start"][3] = tensors["query_start"][4] + 1
    return 4


def start_past_the_tokens(tensors: Mapping[str, torch.Tensor], shape: Shape) -> int:
    """A start that no token has; the one after it falls."""
    tensors["query_start"][3] = shape["tokens"] + 1
    return 3


def early_end(tensors: Mapping[str, torch.Tensor], shape: Shape) -> int:
    """Tokens of no sequence."""
    tensors["query_start"][shape["batch"]] -= 1
    return shape["batch"]


def bad_length(tensors: Mapping[str, torch.Tensor], _shape: Shape) -> int:
    """A sequence longer than its row of the table."""
    tensors["kv_len"][1] = FAR
    return 1


def bad_entry(tensors: Mapping[str, torch.Tensor], shape: Shape) -> int:
    """A token past the vocabulary, and later a sequence that is not there."""
    tensors["entry_kinds"][5] = tensors["entry_kinds"][9] = 2
    tensors["entry_tokens"][5], tensors["entry_slots"][9] = shape["vocab_size"], shape["max_sequences"]
    return 5


def bad_kind(tensors: Mapping[str, torch.Tensor], _shape: Shape) -> int:
    """An entry of no kind."""
    tensors["entry_kinds"][7] = 3
    return 7


def bad_slot(tensors: Mapping[str, torch.Tensor], _shape: Shape) -> int:
    """A slot past the sequences."""
    tensors["slots"][4] = FAR
    return 4


def bad_second_page(tensors: Mapping[str, torch.Tensor], _shape: Shape) -> int:
    """A page past the pool in every entry of the second sequence, which has one token."""
    tensors["block_table"][1] = FAR
    return 1


def bad_second_position(tensors: Mapping[str, torch.Tensor], _shape: Shape) -> int:
    """The second sequence's token before the beginning."""
    tensors["positions"][1] = -1
    return 1


def bad_only_page(tensors: Mapping[str, torch.Tensor], _shape: Shape) -> int:
    """A page past the pool in every entry of the only sequence."""
    tensors["block_table"][0] = FAR
    return 0


def bad_only_position(tensors: Mapping[str, torch.Tensor], _shape: Shape) -> int:
    """The only token before the beginning."""
    tensors["positions"][0] = -1
    return 0


BAD_STARTS = [
    ("starts that begin late", late_start, (7,)),
    ("starts that fall", falling_start, (7,)),
    ("a start past the tokens", start_past_the_tokens, (7,)),
]
BAD_LENGTHS = [
    ("page outside the pool", bad_page, (3,)),
    ("length", bad_length, (4,)),
]
BAD_SECOND = [
    ("page outside the pool", bad_second_page, (3,)),
    ("negative position", bad_second_position, (2, 4)),
]
BAD_INPUTS = {
    "embedding.gather": [("token past the vocabulary", bad_token, (1,))],
    "embedding.gather_weighted": [("token past the vocabulary", bad_token, (1,))],
    "history.record_history": [("entry out of range", bad_entry, (1,)), ("no kind", bad_kind, (1,))],
    "kv_cache.rope_append": [
        ("page outside the pool", bad_page, (3,)),
        ("negative position", bad_position, (2, 4)),
        ("starts that end early", early_end, (7,)),
        *BAD_STARTS,
    ],
    "kv_cache.paged_append": [
        ("page outside the pool", bad_page, (3,)),
        ("negative position", bad_position, (4,)),
        ("starts that end early", early_end, (7,)),
        *BAD_STARTS,
    ],
    "position.rope": [("negative position", bad_position, (2,))],
    "chained_gemm.scaled_projected": BAD_SECOND,
    "projected.projected": BAD_SECOND,
    "chained_gemv.scaled_projected": [
        ("page outside the pool", bad_only_page, (3,)),
        ("negative position", bad_only_position, (2, 4)),
    ],
    "paged_decode.paged_decode": BAD_LENGTHS,
    "ragged_prefill.ragged_prefill": BAD_STARTS,
    "paged_prefill.paged_prefill": [
        *BAD_LENGTHS,
        *BAD_STARTS,
    ],
}


def compare_bits(modules: Mapping[str, Module]) -> dict[str, Any]:
    """Per variant, schedule and size: the share of elements that have the first schedule's bits.

    Of a product one row, of several sizes of m; of a prefill every row.
    """
    report: dict[str, Any] = {}

    def add(module: Module, of: str, size: str, found: torch.Tensor) -> None:
        key = ".".join([of, *(str(v) for v in module.artifact.variant.values())])
        group = report.setdefault(key, {"rows": {}})
        first = group.setdefault("first", found)
        group["rows"][f"{module.artifact.manifest['algorithm']} {size}"] = (found == first).double().mean().item()

    for module in modules.values():
        if module.artifact.kernel.startswith(("gemm.", "prefill_gemm.", "joint_gemm.", "clustered_gemm.")):
            for m in (1, 16, 64):
                add(module, "products", f"m={m}", row_of_product(module, m))
        elif "prefill" in module.artifact.kernel:
            shape = list(shapes.correctness(module.artifact))[1]
            torch.manual_seed(0)
            regions = launch(module, shape, inputs.make(module.artifact, shape))
            # Rows of no sequence stay poison, which is no number.
            bits = regions.tensor("output").view(torch.int16).clone()
            add(module, module.artifact.kernel, f"tokens={shape['tokens']}", bits)
    for group in report.values():
        del group["first"]
    return report


def row_of_product(module: Module, m: int) -> torch.Tensor:
    """The first row of a product of m."""
    shape = {"m": m, "n": 1536, "k": 8960}
    torch.manual_seed(0)
    case = inputs.make(module.artifact, {**shape, "m": 64})
    case.inputs.update({k: v[:m] for k, v in case.inputs.items() if k in ("input", "residual")})
    return launch(module, shape, case).tensor("output")[0].clone()
