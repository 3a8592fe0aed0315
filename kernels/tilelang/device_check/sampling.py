"""Random requests for `sampling.sample`, and the contract's token for each by an independent computation in float64."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from device_check.artifact import Artifact
from device_check.cases import Case, randn
from device_check.shapes import Shape
from device_check.tokens import INFINITY, NO_CANDIDATE, NO_SLOT, NOT_A_NUMBER, written

# A token may differ where the reference's running sum comes this close to what decides it, relative to the whole:
# weights have 22 significant bits, and exponents the rounding of f32.
NEAR = 1e-6
MASK_32 = 0xFFFFFFFF
OUTPUT_BITS = 0x7FFFFFFF


@dataclass
class Request:
    """How one row samples."""

    seed: int = 0
    choice: int = 0
    position: int = 0
    top_k: int = 0
    slot: int = 0
    mask: int = 0
    penalizes: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    def ints(self) -> list[int]:
        """The row of `row_ints`, as signed numbers with the same bits."""
        unsigned = [
            self.seed & MASK_32,
            self.seed >> 32,
            self.choice,
            self.position,
            self.top_k,
            self.slot & MASK_32,
            self.mask,
            int(self.penalizes),
        ]
        return [signed(number) for number in unsigned]

    def floats(self) -> list[float]:
        """The row of `row_floats`."""
        penalties = [self.repetition, self.presence, self.frequency]
        return [self.temperature, self.top_p, self.min_p, *penalties, 0.0, 0.0]


def signed(number: int) -> int:
    """A 32-bit number read as a signed one."""
    return number - 2**32 if number >= 2**31 else number


def pick(*choices: object) -> object:
    """One of several."""
    return choices[int(torch.randint(len(choices), ()))]


def draw(low: float, high: float) -> float:
    """A number between two, exact in f32."""
    return float(torch.empty((), dtype=torch.float32).uniform_(low, high))


def requests(shape: Shape) -> list[Request]:
    """A request for each row: every combination of parameters comes up, and some rows pad the batch."""
    vocab_size = shape["vocab_size"]
    slots = torch.randperm(shape["max_sequences"])[: shape["rows"]].tolist()
    rows = []
    for row, slot in enumerate(slots):
        request = Request(
            seed=int(torch.randint(2**62, ())),
            choice=int(torch.randint(4, ())),
            position=int(torch.randint(10_000, ())),
            slot=slot,
            temperature=f32(pick(1.0, 0.7, 0.05, 3.0, draw(0.1, 2.0))),
        )
        wishes: list[Callable[[], None]] = [
            lambda r=request: setattr(r, "top_k", pick(1, 2, 20, 50, max(1, vocab_size // 3), vocab_size, 2**31 + 5)),
            lambda r=request: setattr(r, "top_p", f32(pick(0.95, 0.5, 0.9999, 1e-6, draw(0.05, 0.999)))),
            lambda r=request: setattr(r, "min_p", f32(pick(0.05, 0.3, 1.0, 1e-4))),
            lambda r=request: setattr(r, "mask", int(torch.randint(1, shape["mask_rows"] + 1, ()))),
        ]
        for bit, wish in enumerate(wishes):
            if (row + 1) >> bit & 1:
                wish()
        if (row + 1) >> 4 & 1 or pick(True, False, False):
            request.penalizes = True
            request.repetition = f32(pick(1.0, 1.3, 0.8))
            request.presence, request.frequency = f32(pick(0.0, 0.5, -0.4)), f32(pick(0.0, 0.25, -0.1))
        if row % 13 == 12:
            request.temperature = 0.0
        if row % 17 == 16:
            request = Request(slot=NO_SLOT)
        rows.append(request)
    return rows


def f32(number: object) -> float:
    """A number rounded to f32."""
    return float(torch.tensor(number, dtype=torch.float32))


def sample(_artifact: Artifact, shape: Shape) -> Case:
    """Rows of different shapes with ties and forbidden tokens, under every combination of parameters."""
    rows, vocab_size = shape["rows"], shape["vocab_size"]
    asked = requests(shape)
    logits = logits_of(rows, vocab_size)
    masks = torch.randint(0, 2**32, (shape["mask_rows"], -(-vocab_size // 32)), dtype=torch.int64, device="cuda")
    masks[0] = 1 << 3 if vocab_size > 3 else 1
    history = torch.randint(0, 40, (shape["max_sequences"], vocab_size), dtype=torch.int64, device="cuda")
    history = (history - 35).clamp(min=0)
    history |= (torch.rand(history.shape, device="cuda") < 0.05).long() << 31
    starts, biased, values = biases(shape)
    row_status = torch.zeros(rows, dtype=torch.int32, device="cuda")
    tokens = torch.zeros(rows, dtype=torch.int32, device="cuda")
    allowed: dict[int, set[int]] = {}
    after = history.clone()
    for row, request in enumerate(asked):
        if request.slot == NO_SLOT:
            logits[row, 0] = float("nan")  # is not looked at
            continue
        if row % 29 == 28:
            logits[row] = -INFINITY
        if row % 31 == 30:
            logits[row, row * 7919 % vocab_size] = INFINITY if row % 2 else float("nan")
            request.mask = 0
        entries = range(int(starts[row]), int(starts[row + 1]))
        adjusted = adjust(logits[row], request, masks, history, [(int(biased[e]), float(values[e])) for e in entries])
        status, token, others = choose(adjusted, request)
        row_status[row], tokens[row] = status, token
        if others:
            allowed[row] = others
    for row, request in enumerate(asked):
        if request.penalizes and request.slot != NO_SLOT and not row_status[row]:
            after[request.slot, tokens[row].long()] += 1
    slots = torch.tensor([request.slot for request in asked], device="cuda")
    last_tokens, untouched = written(shape, slots, tokens)
    inputs = {
        "logits": logits,
        "row_ints": torch.tensor([request.ints() for request in asked], dtype=torch.int32, device="cuda"),
        "row_floats": torch.tensor([request.floats() for request in asked], dtype=torch.float32, device="cuda"),
        "masks": bits(masks),
        "adjust_start": starts.int().cuda(),
        "adjust_tokens": biased.int().cuda(),
        "adjust_values": values.cuda(),
        "history": bits(history),
    }
    expected = {"tokens": tokens, "row_status": row_status, "last_tokens": last_tokens, "history": bits(after)}

    def forgive(name: str, found: torch.Tensor) -> torch.Tensor:
        """The expected output, with the found tokens where rounding may decide."""
        wanted = expected[name].clone()
        for row, others in allowed.items():
            request = asked[row]
            where = {"tokens": row, "last_tokens": request.slot}.get(name)
            if where is not None and int(found[where]) in others:
                wanted[where] = found[where]
            if name == "history" and request.penalizes:
                changed = (found[request.slot] != bits(history)[request.slot]).nonzero().flatten().tolist()
                if len(changed) == 1 and changed[0] in others:
                    wanted[request.slot] = bits(history)[request.slot]
                    wanted[request.slot, changed[0]] += 1
        return wanted

    return Case(
        inputs,
        expected,
        untouched={"last_tokens": untouched},
        exact=tuple(expected),
        forgive=forgive,
        near=len(allowed),
    )


def logits_of(rows: int, vocab_size: int) -> torch.Tensor:
    """Rows like a model's, rows of few values, rows that are almost flat, rows with one token far ahead."""
    logits = randn(rows, vocab_size, dtype=torch.float32, scale=2.5)
    for row in range(rows):
        kind = row % 5
        if kind == 1:
            logits[row] = (logits[row] * 4).round() / 4
        elif kind == 2:
            logits[row] = 20.0 + logits[row] * 1e-5
        elif kind == 3:
            logits[row, row * 31 % vocab_size] = 14.0
            logits[row, row % 3 :: 3] = -INFINITY
            logits[row, row * 31 % vocab_size] = 14.0
        elif kind == 4:
            logits[row] = torch.where(logits[row] > 2, logits[row], logits[row] * 0.0)
    return logits


def biases(shape: Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Up to 40 biases for every other row, sorted, some tokens more than once, some forbidden."""
    starts, tokens, values = [0], [], []
    for row in range(shape["rows"]):
        count = int(torch.randint(1, 40, ())) if row % 2 and row % 8 != 3 else 0
        mine = torch.randint(0, shape["vocab_size"], (count,))
        mine[: count // 3] = mine[0] if count else 0
        tokens.append(mine.sort().values)
        bias = torch.randn(count) * 4
        bias[torch.rand(count) < 0.1] = -INFINITY
        values.append(bias)
        starts.append(starts[-1] + count)
    room = shape["max_adjust"]
    padded = torch.zeros(room, dtype=torch.int64), torch.zeros(room)
    padded[0][: starts[-1]], padded[1][: starts[-1]] = torch.cat(tokens), torch.cat(values)
    return torch.tensor(starts), *padded


def bits(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers below 2^32 as 32-bit ones."""
    return torch.where(numbers >= 2**31, numbers - 2**32, numbers).int()


def timed(shape: Shape, parameters: str) -> dict[str, torch.Tensor]:
    """Operands for timing: rows with every parameter ("all"), with top-k and top-p ("top"), or with none ("none")."""
    rows, vocab_size = shape["rows"], shape["vocab_size"]
    asked = [Request(seed=row, slot=row, temperature=f32(0.8)) for row in range(rows)]
    starts = torch.zeros(rows + 1)
    for request in asked if parameters != "none" else ():
        request.top_k, request.top_p = 50, f32(0.95)
    for request in asked if parameters == "all" else ():
        request.mask, request.penalizes, request.repetition, request.min_p = 1, True, f32(1.1), f32(0.01)
        starts = torch.arange(rows + 1) * 30
    masks = torch.full((shape["mask_rows"], -(-vocab_size // 32)), -1, dtype=torch.int32, device="cuda")
    return {
        "logits": randn(rows, vocab_size, dtype=torch.float32, scale=3.0),
        "row_ints": torch.tensor([request.ints() for request in asked], dtype=torch.int32, device="cuda"),
        "row_floats": torch.tensor([request.floats() for request in asked], dtype=torch.float32, device="cuda"),
        "masks": masks,
        "adjust_start": starts.int().cuda(),
        "adjust_tokens": (torch.arange(shape["max_adjust"]) % 30).int().cuda(),
    }


def adjust(
    logits: torch.Tensor,
    request: Request,
    masks: torch.Tensor,
    history: torch.Tensor,
    entries: list[tuple[int, float]],
) -> torch.Tensor:
    """Steps 2 and 3 of the contract, in f32."""
    adjusted = logits.clone()
    for token, value in entries:
        adjusted[token] += value
    ids = torch.arange(len(logits), device="cuda")
    if request.mask:
        adjusted[masks[request.mask - 1, ids // 32] >> (ids % 32) & 1 == 0] = -INFINITY
    if request.penalizes:
        used, times = history[request.slot] != 0, history[request.slot] & OUTPUT_BITS
        repetition, presence, frequency = (
            torch.tensor(x, dtype=torch.float32, device="cuda")
            for x in (request.repetition, request.presence, request.frequency)
        )
        penalized = torch.where(adjusted > 0, adjusted / repetition, adjusted * repetition)
        adjusted = torch.where(used, penalized, adjusted)
        adjusted = torch.where(times > 0, (adjusted - frequency * times.float()) - presence, adjusted)
    return adjusted


def choose(adjusted: torch.Tensor, request: Request) -> tuple[int, int, set[int]]:
    """Steps 4 to 6 in f64: status, token, and the tokens that rounding may give instead."""
    if adjusted.isnan().any() or (adjusted == INFINITY).any():
        return NOT_A_NUMBER, 0, set()
    peak = adjusted.max()
    if peak == -INFINITY:
        return NO_CANDIDATE, 0, set()
    if request.temperature == 0:
        return 0, int((adjusted == peak).nonzero()[0]), set()
    uniform = uniform_of(request)
    order = torch.sort(adjusted + 0.0, descending=True, stable=True).indices
    weights = ((adjusted.double() - peak.double()) / request.temperature).exp()
    tokens = {
        candidate(weights, order, request, uniform, (min_shift, p_shift, u_shift))
        for min_shift in (0, -1, 1)
        for p_shift in (0, -1, 1)
        for u_shift in (0, -1, 1)
    }
    token = candidate(weights, order, request, uniform, (0, 0, 0))
    return 0, token, tokens if len(tokens) > 1 else set()


def candidate(
    weights: torch.Tensor, order: torch.Tensor, request: Request, uniform: float, shifts: tuple[int, int, int]
) -> int:
    """The token, with the thresholds of min-p, top-p and the draw moved by as much as rounding may."""
    min_shift, p_shift, u_shift = shifts
    kept = order[(weights[order] > 0) & (weights[order] >= request.min_p * (1 + min_shift * NEAR))]
    # The best token has weight 1, so that it is kept whatever rounding does to min-p.
    kept = kept if len(kept) else order[:1]
    if request.top_k:
        kept = kept[: request.top_k]
    if request.top_p < 1:
        sums = weights[kept].cumsum(0)
        target = request.top_p * sums[-1] + p_shift * NEAR * sums[-1]
        kept = kept[: int((sums < target).sum()) + 1]
    kept = kept.sort().values
    sums = weights[kept].cumsum(0)
    past = sums > (uniform + u_shift * NEAR) * sums[-1]
    return int(kept[past][0] if past.any() else kept[-1])


def uniform_of(request: Request) -> float:
    """`Draw::uniform`, by Random123's description of Philox4x32-10."""
    counter = [request.position & MASK_32, request.position >> 32, request.choice, 0]
    key = [request.seed & MASK_32, request.seed >> 32]
    for _ in range(10):
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            second >> 32 ^ counter[1] ^ key[0],
            second & MASK_32,
            first >> 32 ^ counter[3] ^ key[1],
            first & MASK_32,
        ]
        key = [(key[0] + 0x9E3779B9) & MASK_32, (key[1] + 0xBB67AE85) & MASK_32]
    return (counter[0] << 21 | counter[1] >> 11) / 2**53
