"""Times of what other engines adopt: attention over their pages and over none, appends, rotations and gates."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from device_check import inputs
from device_check.driver import Module
from device_check.floors import Rates
from device_check.shapes import Model
from device_check.timing import ROTATION_BYTES, Deadline, by_kernel, paged_operands, splits_of, time_artifact

DECODES = tuple(itertools.product((1024, 4096), (1, 8, 64, 256)))
# Of the other pages a few rows tell enough.
FEW_DECODES = ((4096, 8), (1024, 64), (4096, 64))
PREFILLS = (2048, 8192)
PAGES = (("nhd", 16), ("hnd", 16), ("nhd", 64))
TOKENS = 16_384
Rows = Iterator[dict[str, Any]]


def adopted(
    modules: Mapping[str, Module], model: Model, rates: Rates, deadline: Deadline, beat: Callable[[str], None]
) -> Rows:
    """Decodes and prefills over each kind of pages, prefills and decodes over none, and what moves heads."""
    for layout, page_size in PAGES:
        of_pages = {"head_dim": model.head_dim, "layout": layout, "page_size": page_size}
        candidates = by_kernel(modules, "paged_decode.paged_decode", **of_pages)
        for length, batch in DECODES if page_size == 16 and layout == "nhd" else FEW_DECODES:
            if deadline.passed():
                return
            yield decode(candidates, model, (layout, page_size), (length, batch), beat)
            torch.cuda.empty_cache()
        for length in PREFILLS if model.num_kv_heads == 8 else ():
            if deadline.passed():
                return
            candidates = by_kernel(modules, "paged_prefill.paged_prefill", **of_pages)
            yield prefill(candidates, model, (layout, page_size), length, beat)
            torch.cuda.empty_cache()
    if model.num_kv_heads == 8 and not deadline.passed():
        yield from flat(modules, model, beat)
        yield from moves(modules, model, beat)


def decode(
    candidates: Sequence[Module],
    model: Model,
    pages: tuple[str, int],
    lengths: tuple[int, int],
    beat: Callable[[str], None],
) -> dict[str, Any]:
    """One query a sequence, by every schedule."""
    length, batch = lengths
    shape, rotation = paged_operands(model, (length,) * batch, *pages)
    row = {"what": "decode", "model": model.name, "batch": batch, "kv_len": length, "ours": {}}
    row |= {"pages": f"{pages[0]} {pages[1]}", "dimensions": shape}
    for module in candidates:
        beat(module.artifact.name)
        for splits in splits_of(module, {**shape, "max_pages": length // 64}):
            split = "splits" in module.artifact.manifest["dimensions"]
            times = time_artifact(
                module, {**shape, "splits": splits} if split else shape, rotation, {"scale": model.head_dim**-0.5}
            )
            row["ours"][f"{module.artifact.name} splits={splits}"] = times
    row["bytes"] = 2 * batch * length * model.num_kv_heads * model.head_dim * 2
    return row


def prefill(
    candidates: Sequence[Module], model: Model, pages: tuple[str, int], length: int, beat: Callable[[str], None]
) -> dict[str, Any]:
    """One whole prompt over pages."""
    shape, rotation = paged_operands(model, (length,), *pages)
    q, starts = queries(model, length)
    rotation = [{**tensors, "q": q, "query_start": starts} for tensors in rotation]
    row = prefill_row(model, f"{length} in pages {pages[0]} {pages[1]}", length)
    for module in candidates:
        beat(module.artifact.name)
        times = time_artifact(module, {**shape, "tokens": length}, rotation, {"scale": model.head_dim**-0.5})
        row["ours"][module.artifact.name] = times
    return row


def queries(model: Model, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of one sequence, and where they start."""
    starts = torch.tensor([0, length], dtype=torch.int32, device="cuda")
    return inputs.randn(length, model.num_q_heads, model.head_dim), starts


def prefill_row(model: Model, batch: str, length: int) -> dict[str, Any]:
    """What a prefill of a whole prompt comes to."""
    operations = 4 * model.num_q_heads * model.head_dim * length * length / 2
    return {"what": "prefill", "model": model.name, "batch": batch, "ours": {}, "operations": operations}


def flat(modules: Mapping[str, Module], model: Model, beat: Callable[[str], None]) -> Rows:
    """Prefill and decode over keys with no pages."""
    heads = {"num_q_heads": model.num_q_heads, "num_kv_heads": model.num_kv_heads, "head_dim": model.head_dim}
    attributes = {"scale": model.head_dim**-0.5}
    for length in PREFILLS:
        q, starts = queries(model, length)
        k, v = (inputs.randn(length, model.num_kv_heads, model.head_dim) for _ in range(2))
        tensors = {"q": q, "k": k, "v": v, "query_start": starts, "kv_start": starts}
        row = prefill_row(model, f"{length} with no pages", length)
        for module in by_kernel(modules, "ragged_prefill.ragged_prefill", head_dim=model.head_dim):
            beat(module.artifact.name)
            shape = {**heads, "batch": 1, "tokens": length, "kv_tokens": length}
            row["ours"][module.artifact.name] = time_artifact(module, shape, [tensors], attributes)
        yield row
    for length in (4096, 131_072):
        rotated = 2 * length * model.num_kv_heads * model.head_dim * 2
        keys = (length, model.num_kv_heads, model.head_dim)
        q = inputs.randn(1, model.num_q_heads, model.head_dim)
        sets = max(1, min(16, math.ceil(ROTATION_BYTES / rotated)))
        rotation = [{"q": q, "k": inputs.randn(*keys), "v": inputs.randn(*keys)} for _ in range(sets)]
        row = {"what": "decode", "model": model.name, "batch": 1, "kv_len": length, "ours": {}}
        row |= {"pages": "none", "bytes": rotated}
        for module in by_kernel(modules, "single_decode.single_decode", head_dim=model.head_dim):
            beat(module.artifact.name)
            for splits in splits_of(module, {**heads, "batch": 1, "max_pages": length // 64}):
                times = time_artifact(module, {**heads, "kv_len": length, "splits": splits}, rotation, attributes)
                row["ours"][f"{module.artifact.name} splits={splits}"] = times
        yield row
        torch.cuda.empty_cache()


def moves(modules: Mapping[str, Module], model: Model, beat: Callable[[str], None]) -> Rows:
    """What reads and writes heads or rows once: appends, rotations, gates."""
    for page_size in (16, 64):
        shape = {
            "batch": 4,
            "tokens": TOKENS,
            "num_q_heads": model.num_q_heads,
            "num_kv_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "rotary_dim": model.head_dim,
            "page_size": page_size,
            "max_pages": TOKENS // page_size,
            "num_pages": 4 * TOKENS // page_size,
            "max_positions": TOKENS,
        }
        for kernel, moved_heads in (
            ("kv_cache.rope_append", model.num_q_heads + 2 * model.num_kv_heads),
            ("kv_cache.paged_append", 2 * model.num_kv_heads),
        ):
            wanted = {"head_dim": model.head_dim, "page_size": page_size}
            for module in by_kernel(modules, kernel, **wanted):
                beat(module.artifact.name)
                case = inputs.make(module.artifact, shape)
                times = time_artifact(module, shape, [case.inputs], case.attributes)
                moved = 2 * TOKENS * moved_heads * model.head_dim * 2
                yield {"what": kernel, "m": TOKENS, "ours": {module.artifact.name: times}, "bytes": moved}
                del case
                torch.cuda.empty_cache()
    shape = {"tokens": TOKENS, "num_heads": model.num_q_heads, "max_positions": TOKENS}
    shape |= {"head_dim": model.head_dim, "rotary_dim": model.head_dim}
    gate = {"rows": TOKENS // 4, "size": model.intermediate_size}
    for kernel, of, moved, variant in (
        ("position.rope", shape, 2 * TOKENS * model.num_q_heads * model.head_dim * 2, {"head_dim": model.head_dim}),
        ("activation.swiglu", gate, 3 * gate["rows"] * gate["size"] * 2, {"dtype": "bf16"}),
    ):
        for module in by_kernel(modules, kernel, **variant):
            beat(module.artifact.name)
            case = inputs.make(module.artifact, of)
            times = time_artifact(module, of, [case.inputs], case.attributes)
            yield {"what": kernel, "m": TOKENS, "ours": {module.artifact.name: times}, "bytes": moved}
