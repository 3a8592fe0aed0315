"""The rule of model parity, on plain numbers: what is noise, what must be equal, how large an error may be.

A step is one generated position of one case, teacher-forced: every implementation sees the same tokens before it.
Logits of a step are compared in `compare.py`; what is here needs neither numpy nor torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

NOISE_PERCENTILE = 99.9
"""Noise is this percentile of what bfloat16 changes in a step's margin."""
ERROR_RATIO = 1.1
"""Our errors may be at most this many times those of transformers in bfloat16."""


@dataclass
class Steps:
    """One implementation's logits beside the float32 reference's, a number a step."""

    argmax: list[int] = field(default_factory=list)
    """Its best token."""
    margin: list[float] = field(default_factory=list)
    """Its logit of the reference's best token less that of the reference's second best: negative when it swaps them."""
    own_margin: list[float] = field(default_factory=list)
    """Its best logit less its second best."""
    max_error: list[float] = field(default_factory=list)
    """Largest absolute difference of a logit."""
    mean_error: list[float] = field(default_factory=list)
    """Mean absolute difference of the logits."""
    kl: list[float] = field(default_factory=list)
    """KL(reference || implementation) in nats."""

    def extend(self, other: "Steps") -> None:
        for name, values in vars(other).items():
            getattr(self, name).extend(values)

    def errors(self) -> dict[str, float]:
        """Maximum and means over all steps."""
        return {
            "max": max(self.max_error),
            "mean": math.fsum(self.mean_error) / len(self.mean_error),
            "kl": math.fsum(self.kl) / len(self.kl),
        }


def percentile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least `q` percent of the values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("there are no values")
    if not 0 < q <= 100:
        raise ValueError(f"the percentile must be above 0 and at most 100, got {q}")
    ordered = sorted(values)
    # A product such as 99.9 * 1000 / 100 must not come out a hair above a whole number.
    rank = math.ceil(round(q * len(ordered) / 100, 9))
    return ordered[max(rank, 1) - 1]


def noise_of(reference: Steps, bf16: Steps) -> float:
    """How much bfloat16 alone changes the margin of the reference's two best tokens."""
    return percentile([abs(a - b) for a, b in zip(bf16.margin, reference.margin, strict=True)], NOISE_PERCENTILE)


def own_noise_of(reference: Steps, bf16: Steps) -> float:
    """The same with each side's own two best tokens; for information, it is smaller when bfloat16 swaps them."""
    pairs = zip(bf16.own_margin, reference.own_margin, strict=True)
    return percentile([abs(a - b) for a, b in pairs], NOISE_PERCENTILE)


def differing(reference: Steps, ours: Steps, noise: float) -> list[int]:
    """Steps whose margin exceeds the noise and whose best token differs all the same."""
    steps = zip(reference.margin, reference.argmax, ours.argmax, strict=True)
    return [i for i, (margin, expected, found) in enumerate(steps) if margin > noise and expected != found]


def ratio(ours: float, theirs: float) -> float:
    """How many times an error of transformers ours is."""
    if theirs == 0:
        return 1.0 if ours == 0 else math.inf
    return ours / theirs


def verdict(reference: Steps, bf16: Steps, ours: Steps) -> dict:
    """Everything that the rule says of one run; `failures` is empty if it is kept."""
    noise = noise_of(reference, bf16)
    wrong = differing(reference, ours, noise)
    theirs, own = bf16.errors(), ours.errors()
    ratios = {name: ratio(own[name], theirs[name]) for name in theirs}
    failures = [f"step {i}: token {ours.argmax[i]} where float32 has {reference.argmax[i]}" for i in wrong[:20]]
    failures += [
        f"{name} error is {value:.4g} times that of transformers in bfloat16, at most {ERROR_RATIO} is allowed"
        for name, value in ratios.items()
        # NaN must fail too.
        if not value <= ERROR_RATIO
    ]
    steps = len(reference.margin)
    return {
        "steps": steps,
        "steps_over_noise": sum(margin > noise for margin in reference.margin),
        "differing_over_noise": len(wrong),
        "differing": sum(a != b for a, b in zip(reference.argmax, ours.argmax, strict=True)),
        "errors": own,
        "error_ratios": ratios,
        "failures": failures,
    }
