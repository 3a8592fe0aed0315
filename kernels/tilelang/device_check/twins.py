"""Pairs of an artifact and its twin with fixed dimensions, and shapes to time them with. No GPU, no PyTorch here."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from device_check.artifact import Artifact, Selection, load_all
from device_check.shapes import PAGE_SIZE, QWEN_1_5B, Shape, attention

STATIC = ".static_"
ROWS = (1, 16, 256, 4096)
# Sequences, keys of each, and the splits of kernels that take any number of them.
DECODES = ((1, 4096, 32), (16, 1024, 4), (64, 2048, 1), (256, 1024, 1))
# Query rows and keys of each sequence.
PREFILLS = (((2048, 2048),), ((1024, 1024),) * 8, ((512, 4096),))


@dataclass(frozen=True)
class Pair:
    """Two kernels that do the same, and a shape."""

    symbolic: Artifact
    static: Artifact
    shape: Shape
    # Query rows and keys of each sequence, for attention.
    sequences: tuple[tuple[int, int], ...] = ()


def pairs(committed: Path, folder: Path) -> list[Pair]:
    """Every twin with its artifact, at the shapes that the artifact serves."""
    artifacts = {artifact.name: artifact for artifact in load_all(committed, "")}
    selection = Selection.of(committed)
    found = []
    for twin in load_all(folder, ""):
        symbolic = artifacts[twin.name.partition(STATIC)[0]]
        if symbolic.manifest["source"] != twin.manifest["source"]:
            raise ValueError(f"{twin.name} is not of the sources of {symbolic.name}: compile the twins again")
        found += [Pair(symbolic, twin, *shape) for shape in shapes(symbolic, twin, selection)]
    return found


def shapes(symbolic: Artifact, twin: Artifact, selection: Selection) -> Iterator[tuple]:
    """What a pair is timed with."""
    fixed = {name: domain["min"] for name, domain in twin.manifest["dimensions"].items() if is_fixed(domain)}
    family = symbolic.kernel.partition(".")[0]
    if symbolic.manifest["contract"] == "gemm.dense":
        for m in ROWS:
            shape = {**fixed, "m": m}
            if selection.algorithm(symbolic, shape) == symbolic.manifest["algorithm"]:
                yield (shape,)
    elif family == "normalization":
        yield from (({**fixed, "tokens": tokens, "heads": 1},) for tokens in ROWS)
    elif family == "paged_decode":
        for batch, length, splits in DECODES:
            shape = of_attention(batch, length)
            if "splits" in symbolic.manifest["dimensions"]:
                yield {**shape, "splits": splits}, ((1, length),) * batch
            elif selection.algorithm(symbolic, shape) == symbolic.manifest["algorithm"]:
                yield shape, ((1, length),) * batch
    else:
        for sequences in PREFILLS:
            longest = max(keys for _, keys in sequences)
            yield {**of_attention(len(sequences), longest), "tokens": sum(rows for rows, _ in sequences)}, sequences


def is_fixed(domain: dict[str, int]) -> bool:
    """Whether a dimension can have one value only."""
    return domain["min"] == domain["max"]


def of_attention(batch: int, longest: int) -> Shape:
    """Dimensions that both attention kernels have, of the model whose heads are fixed."""
    model = QWEN_1_5B
    return attention(model.head_dim, batch, -(-longest // PAGE_SIZE), model.num_q_heads, model.num_kv_heads)
