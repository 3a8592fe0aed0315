"""Times of pairs in turns that begin with either."""

import itertools
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch

from device_check import checks, inputs, session, timing
from device_check.cases import Case
from device_check.driver import Driver, Module
from device_check.memory import record as recorded
from device_check.shapes import QWEN_1_5B
from device_check.twins import Pair

TURNS = 15
# The contract with the reader of the record: symbolic dimensions may cost as much.
LIMIT = 1.03
EPSILON = {"epsilon": inputs.EPSILON}


def run(pairs: list[Pair], revision: str | None, budget: float) -> dict[str, Any]:
    """Time every pair until the budget is spent."""
    began = time.monotonic()
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    driver = Driver()
    kernels = {artifact.name: artifact for pair in pairs for artifact in (pair.symbolic, pair.static)}
    record = session.header("twin_check", driver, list(kernels.values()), revision)
    modules = {name: Module(driver, artifact) for name, artifact in kernels.items()}
    record |= {"turns": TURNS, "pairs": [], "not_begun": []}
    for pair in pairs:
        if time.monotonic() - began > budget:
            record["not_begun"].append({"artifact": pair.symbolic.name, "shape": pair.shape})
            continue
        torch.manual_seed(0)
        row = times(pair, modules)
        record["pairs"].append(row)
        print(f"{line(row)}", flush=True)
        torch.cuda.empty_cache()
    record["seconds"] = time.monotonic() - began
    return record


def times(pair: Pair, modules: Mapping[str, Module]) -> dict[str, Any]:
    """Samples of both, and their ratio turn by turn."""
    shape, rotation, attributes = operands(pair)
    both = [modules[artifact.name] for artifact in (pair.symbolic, pair.static)]
    outputs = [checks.launch(module, shape, Case(rotation[0], {}, attributes)).tensor("output") for module in both]
    replays = [timing.Replay(timing.calls_of(module, shape, rotation, attributes)) for module in both]
    samples = ([], [])
    for turn in range(TURNS):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            samples[which].append(replays[which].sample())
    ratios = [symbolic / static for symbolic, static in zip(*samples, strict=True)]
    return {
        "artifact": pair.symbolic.name,
        "static": pair.static.name,
        "shape": shape,
        "symbolic_us": recorded(samples[0]),
        "static_us": recorded(samples[1]),
        "ratio": median(ratios),
        "ratios": [min(ratios), max(ratios)],
        "same_bits": checks.same_bits(*outputs),
    }


def operands(pair: Pair) -> tuple[dict[str, int], list[dict[str, torch.Tensor]], dict[str, float]]:
    """The shape as it is run, sets of operands, and the numbers given by value."""
    artifact, shape = pair.symbolic, pair.shape
    family = artifact.kernel.partition(".")[0]
    if artifact.manifest["contract"] == "gemm.dense":
        return shape, timing.product_operands(artifact, shape), {}
    if family == "normalization":
        made = inputs.make(artifact, shape)
        size = sum(tensor.nbytes for tensor in made.inputs.values())
        sets = max(1, min(16, int(timing.ROTATION_BYTES // size)))
        return shape, [made.inputs, *(inputs.make(artifact, shape).inputs for _ in range(sets - 1))], EPSILON
    rotated, rotation, _ = timing.attention_operands(QWEN_1_5B, [keys for _, keys in pair.sequences])
    if family == "paged_prefill":
        starts = torch.tensor([0, *itertools.accumulate(rows for rows, _ in pair.sequences)])
        q = inputs.randn(shape["tokens"], shape["num_q_heads"], shape["head_dim"])
        rotation = [{**tensors, "q": q, "query_start": starts.int().cuda()} for tensors in rotation]
    return {**shape, "num_pages": rotated["num_pages"]}, rotation, {"scale": shape["head_dim"] ** -0.5}


def line(row: Mapping[str, Any]) -> str:
    """One pair in a line."""
    shape = row["shape"]
    named = {name: shape[name] for name in ("m", "n", "k", "tokens", "batch", "max_pages", "splits") if name in shape}
    mark = "*" if row["ratio"] > LIMIT else " "
    bits = "" if row["same_bits"] else ", other bits"
    low, high = row["ratios"]
    return (
        f"{mark} {row['artifact']} {named}: {row['symbolic_us']['median']:.2f} us, static "
        f"{row['static_us']['median']:.2f}, ratio {row['ratio']:.3f} ({low:.3f} to {high:.3f}){bits}"
    )


def print_table(record: Mapping[str, Any]) -> None:
    """The pairs that cost more than is allowed, and how many there are."""
    over = [row for row in record["pairs"] if row["ratio"] > LIMIT]
    print(f"# {len(record['pairs'])} pairs in {record['seconds']:.0f} s, {len(over)} over {LIMIT}:")
    for row in over:
        print(line(row))
