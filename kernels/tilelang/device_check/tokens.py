"""Random logits and requests for the kernels that choose tokens, and what the contract makes of them."""

import torch

from device_check.artifact import Artifact
from device_check.cases import Case, randint, randn
from device_check.shapes import Shape

INFINITY = float("inf")
OUT_OF_RANGE, NO_CANDIDATE, NOT_A_NUMBER = 1, 5, 6
# How many of the most probable tokens `log_probabilities` gives, and how far it may be off: relative where the number
# is over 1, since the result is an f32.
TOP = 32
LOGPROB_TOLERANCE = 1e-5
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


def candidates(artifact: Artifact, shape: Shape) -> Case:
    """Small integers, whose sums are exact and often equal; a row of minus infinity, and one with infinity once.

    Of a tile of nothing but minus infinity the token may be any.
    """
    rows, vocab_size, columns = shape["rows"], shape["vocab_size"], artifact.variant["tile_tokens"]
    rows_in, weight = (randint(-2, 3, (n, shape["hidden_size"])).bfloat16() for n in (rows, vocab_size))
    # The second input is nothing but in one row, where it is too much for one token.
    weight[:, 0], weight[:, 1], rows_in[:, 1] = 1.0, 0.0, 0.0
    weight[vocab_size // 2, 1] = 2.0**100
    for row, at, spoilt in ((4, 0, -INFINITY), (13, 1, 2.0**100)):
        if row < rows:
            rows_in[row, at] = spoilt
    tiles = -(-vocab_size // columns)
    logits = torch.full((rows, tiles * columns), -INFINITY, dtype=torch.float32, device="cuda")
    logits[:, :vocab_size] = (rows_in.double() @ weight.double().t()).float()
    logits = logits.view(rows, tiles, columns)
    best = logits.amax(2)
    first = torch.arange(tiles, device="cuda") * columns + (logits == best[..., None]).int().argmax(2)
    expected = {"best_logits": best, "best_tokens": first.int()}

    def forgive(name: str, found: torch.Tensor) -> torch.Tensor:
        """A token that may be any is taken over."""
        return expected[name] if name == "best_logits" else torch.where(best > -INFINITY, expected[name], found)

    return Case({"input": rows_in, "weight": weight}, expected, exact=tuple(expected), forgive=forgive)


def pick(artifact: Artifact, shape: Shape) -> Case:
    """Candidates with ties for the first place in any order of tokens, rows that fail, rows that pad."""
    rows, candidates = shape["rows"], shape["candidates"]
    case = choose(artifact, {**shape, "vocab_size": candidates})
    of_place = (torch.randperm(candidates, device="cuda") * 3 + 1).int()
    logits, row_ints = case.inputs["logits"], case.inputs["row_ints"]
    best = logits == logits.amax(1, keepdim=True)
    tokens = torch.where(best, of_place, 2**31 - 1).amin(1).int()
    chosen = (case.expected["row_status"] == 0) & (row_ints[:, SLOT] != NO_SLOT)
    tokens = torch.where(chosen, tokens, 0)
    last_tokens, untouched = written(shape, row_ints[:, SLOT], tokens)
    return Case(
        {"best_logits": logits, "best_tokens": of_place.expand(rows, -1).contiguous(), "row_ints": row_ints},
        {**case.expected, "tokens": tokens, "last_tokens": last_tokens},
        untouched={"last_tokens": untouched},
        exact=case.exact,
    )


def written(shape: Shape, slots: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`last_tokens` after a launch, and which of its places must be left alone."""
    last_tokens = torch.zeros(shape["max_sequences"], dtype=torch.int32, device="cuda")
    untouched = torch.ones(shape["max_sequences"], dtype=torch.bool, device="cuda")
    real = slots != NO_SLOT
    last_tokens[slots[real].long()] = tokens[real]
    untouched[slots[real].long()] = False
    return last_tokens, untouched


def log_probabilities(_artifact: Artifact, shape: Shape) -> Case:
    """Logits with ties, minus infinities and rows that fail; all tokens in order, in float64."""
    rows, vocab_size = shape["rows"], shape["vocab_size"]
    logits = randn(rows, vocab_size, dtype=torch.float32, scale=4.0)
    logits[::3] = (logits[::3] * 2).round() / 2
    logits[1::4, 1::2] = -INFINITY
    logits[5::7] = logits[5::7] * 1e-4 + 15.0
    logits[6::7] = logits[6::7] * 30.0
    logits[2::5, vocab_size // 2] = 80.0
    chosen = randint(0, vocab_size, (rows,))
    row_status = torch.zeros(rows, dtype=torch.int32, device="cuda")
    for row in range(rows):
        if row % 19 == 18:
            logits[row], row_status[row] = -INFINITY, NO_CANDIDATE
        elif row % 23 == 22:
            logits[row, row * 7919 % vocab_size] = INFINITY if row % 2 else float("nan")
            row_status[row] = NOT_A_NUMBER
        elif row % 29 == 28:
            chosen[row], row_status[row] = vocab_size + row % 3, OUT_OF_RANGE
    good = row_status == 0
    kept = logits[good].double()
    normalizer = kept.logsumexp(-1)
    order = torch.sort(logits[good] + 0.0, descending=True, stable=True, dim=-1).indices
    count = min(TOP, vocab_size)
    at = chosen[good].long()[:, None]
    expected = {
        "chosen_logprob": torch.full((rows,), -INFINITY, device="cuda", dtype=torch.float64),
        "chosen_rank": torch.zeros(rows, dtype=torch.int32, device="cuda"),
        "top_tokens": torch.full((rows, TOP), -1, dtype=torch.int32, device="cuda"),
        "top_logprobs": torch.full((rows, TOP), -INFINITY, device="cuda", dtype=torch.float64),
        "row_status": row_status,
    }
    top_tokens, top_logprobs = expected["top_tokens"][good], expected["top_logprobs"][good]
    top_tokens[:, :count] = order[:, :count].int()
    top_logprobs[:, :count] = kept.gather(1, order[:, :count]) - normalizer[:, None]
    expected["top_tokens"][good], expected["top_logprobs"][good] = top_tokens, top_logprobs
    expected["chosen_logprob"][good] = kept.gather(1, at)[:, 0] - normalizer
    expected["chosen_rank"][good] = ((order == at).int().argmax(1) + 1).int()

    def forgive(name: str, found: torch.Tensor) -> torch.Tensor:
        """Log-probabilities may be off by a little."""
        if "logprob" not in name:
            return expected[name]
        wanted = expected[name]
        close = (found == wanted) | ((found.double() - wanted).abs() <= LOGPROB_TOLERANCE * wanted.abs().clamp(1, 1e6))
        return torch.where(close, found, wanted.float())

    return Case({"logits": logits, "tokens": chosen}, expected, exact=tuple(expected), forgive=forgive)


def record_history(_artifact: Artifact, shape: Shape) -> Case:
    """Entries of every kind, many for one token; those of no kind name places that are not there."""
    entries, sequences, vocab_size = shape["entries"], shape["max_sequences"], shape["vocab_size"]
    slots, kinds = randint(0, sequences, (entries,)), randint(0, 3, (entries,))
    tokens = randint(0, max(1, vocab_size // 3), (entries,))
    history = randint(0, 5, (sequences, vocab_size)) | (randint(0, 2, (sequences, vocab_size)) << 31)
    after = history.clone()
    places = slots.long() * vocab_size + tokens
    after.view(-1).index_add_(0, places, (kinds == 2).int())
    prompt = places[kinds == 1]
    after.view(-1)[prompt] |= -(2**31)
    slots[kinds == 0], tokens[kinds == 0] = -1, vocab_size
    inputs = {"entry_slots": slots, "entry_tokens": tokens, "entry_kinds": kinds, "history": history}
    return Case(inputs, {"history": after}, exact=("history",))
