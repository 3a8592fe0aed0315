"""Random logits and requests for the kernels that choose tokens, and what the contract makes of them."""

import torch

from device_check.artifact import Artifact
from device_check.cases import Case, randint, randn
from device_check.shapes import Shape

INFINITY = float("inf")
NO_CANDIDATE, NOT_A_NUMBER = 5, 6
# Columns of `row_ints`.
SLOT = 5
NO_SLOT = -1  # 0xffffffff


def choose(_artifact: Artifact, shape: Shape) -> Case:
    """Logits with ties for the first place, some of minus infinity, rows that fail, rows that pad."""
    rows, vocab_size = shape["rows"], shape["vocab_size"]
    logits = randn(rows, vocab_size, dtype=torch.float32)
    logits[:, ::3] = -INFINITY if vocab_size > 3 else 1.0
    at = randint(0, vocab_size, (rows, 2)).long()
    logits.scatter_(1, at, 9.0)
    tokens, row_status = at.min(1).values.int(), torch.zeros(rows, dtype=torch.int32, device="cuda")
    row_ints = randint(0, 1000, (rows, 8))
    slots = torch.randperm(shape["max_sequences"], device="cuda")[:rows].int()
    for row, status in ((4, NO_CANDIDATE), (11, NOT_A_NUMBER), (12, NOT_A_NUMBER), (20, None)):
        if row >= rows:
            continue
        tokens[row] = 0
        if status == NO_CANDIDATE:
            logits[row] = -INFINITY
        elif status == NOT_A_NUMBER:
            logits[row, (row * 997) % vocab_size] = INFINITY if row % 2 else float("nan")
        else:
            slots[row] = NO_SLOT
        row_status[row] = status or 0
    row_ints[:, SLOT] = slots
    last_tokens, untouched = written(shape, slots, tokens)
    return Case(
        {"logits": logits, "row_ints": row_ints},
        {"tokens": tokens, "row_status": row_status, "last_tokens": last_tokens},
        untouched={"last_tokens": untouched},
        exact=("tokens", "row_status", "last_tokens"),
    )


def written(shape: Shape, slots: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`last_tokens` after a launch, and which of its places must be left alone."""
    last_tokens = torch.zeros(shape["max_sequences"], dtype=torch.int32, device="cuda")
    untouched = torch.ones(shape["max_sequences"], dtype=torch.bool, device="cuda")
    real = slots != NO_SLOT
    last_tokens[slots[real].long()] = tokens[real]
    untouched[slots[real].long()] = False
    return last_tokens, untouched
