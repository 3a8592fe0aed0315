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
from device_check.timing import (
    ROTATION_BYTES,
    Deadline,
    by_kernel,
    paged_operands,
    prefill_row,
    splits_of,
    starts,
    time_artifact,
)

DECODES = tuple(itertools.product((1024, 4096), (1, 8, 64, 256)))
# Of the other pages a few rows tell enough.
FEW_DECODES = ((4096, 8), (1024, 64), (4096, 64))
# Queries and keys of each sequence: whole prompts, and those of few rows, some after earlier keys.
PROMPTS = {str(length): [(length, length)] for length in (2048, 8192)}
FEW_ROWS = {
    "16": [(16, 16)],
    "32 after 224, 64 after 960": [(32, 256), (64, 1024)],
    "256": [(256, 256)],
    "512": [(512, 512)],
    "1024": [(1024, 1024)],
    "16 of 4 after 1020": [(4, 1024)] * 16,
    "128 after 3968": [(128, 4096)],
    "512 after 3584": [(512, 4096)],
}
PAGES = (("nhd", 16), ("hnd", 16), ("nhd", 64))
TOKENS = 16_384
Rows = Iterator[dict[str, Any]]
# What a batch is called, and its sequences.
Batch = tuple[str, Sequence[tuple[int, int]]]


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
        batches = {**PROMPTS, **(FEW_ROWS if page_size == 16 and layout == "nhd" else {})}
        for name, sequences in batches.items() if model.num_kv_heads == 8 else ():
            if deadline.passed():
                return
            candidates = by_kernel(modules, "paged_prefill.paged_prefill", **of_pages)
            yield prefill(candidates, model, (layout, page_size), (name, sequences), beat)
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
    candidates: Sequence[Module], model: Model, pages: tuple[str, int], batch: Batch, beat: Callable[[str], None]
) -> dict[str, Any]:
    """A batch over pages."""
    name, sequences = batch
    queries, lengths = ([s[0] for s in sequences], [s[1] for s in sequences])
    shape, rotation = paged_operands(model, lengths, *pages)
    shape["tokens"] = sum(queries)
    rows = {"q": inputs.randn(sum(queries), model.num_q_heads, model.head_dim), "query_start": starts(queries)}
    rotation = [{**tensors, **rows} for tensors in rotation]
    row = prefill_row(model, f"{name} in pages {pages[0]} {pages[1]}", sequences)
    for module in candidates:
        beat(module.artifact.name)
        times = time_artifact(module, shape, rotation, {"scale": model.head_dim**-0.5})
        row["ours"][module.artifact.name] = times
    return row


def ragged(candidates: Sequence[Module], model: Model, batch: Batch, beat: Callable[[str], None]) -> dict[str, Any]:
    """A batch over keys with no pages."""
    name, sequences = batch
    queries, lengths = ([s[0] for s in sequences], [s[1] for s in sequences])
    k, v = (inputs.randn(sum(lengths), model.num_kv_heads, model.head_dim) for _ in range(2))
    tensors = {"q": inputs.randn(sum(queries), model.num_q_heads, model.head_dim), "k": k, "v": v}
    tensors |= {"query_start": starts(queries), "kv_start": starts(lengths)}
    shape = {"num_q_heads": model.num_q_heads, "num_kv_heads": model.num_kv_heads, "head_dim": model.head_dim}
    shape |= {"batch": len(sequences), "tokens": sum(queries), "kv_tokens": sum(lengths)}
    row = prefill_row(model, f"{name} with no pages", sequences)
    for module in candidates:
        beat(module.artifact.name)
        row["ours"][module.artifact.name] = time_artifact(module, shape, [tensors], {"scale": model.head_dim**-0.5})
    return row


def flat(modules: Mapping[str, Module], model: Model, beat: Callable[[str], None]) -> Rows:
    """Prefill and decode over keys with no pages."""
    heads = {"num_q_heads": model.num_q_heads, "num_kv_heads": model.num_kv_heads, "head_dim": model.head_dim}
    attributes = {"scale": model.head_dim**-0.5}
    candidates = by_kernel(modules, "ragged_prefill.ragged_prefill", head_dim=model.head_dim)
    for batch in {**PROMPTS, **FEW_ROWS}.items():
        yield ragged(candidates, model, batch, beat)
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
