#!/usr/bin/env python3
"""Judges our logits by transformers in float32 and bfloat16, and writes an evidence record.

    compare.py --reference /dev/shm/parity --logits alone=alone.bin --logits batched=batched.bin \\
        --revision REV --record FILE

Each `--logits MODE=FILE` is what `oxide-infer-lab parity --mode MODE --logits FILE` wrote; its report beside that
(FILE.json) goes into the record. The first mode is the one that the bits of the others are compared with. Exits 1 if
the rule of `metrics.py` is broken in any mode.
"""

import argparse
import datetime
import json
import math
import sys
from pathlib import Path

import numpy
import torch
from metrics import ERROR_RATIO, NOISE_PERCENTILE, Steps, noise_of, own_noise_of, verdict
from reference import device_facts, versions

sys.path.append(str(Path(__file__).resolve().parents[1]))

import artifacts  # noqa: E402


def main() -> int:
    args = arguments()
    reference = json.loads((args.reference / "reference.json").read_text())
    cases = json.loads((args.reference / "cases.json").read_text())["cases"]
    shape = (len(cases), reference["new_tokens"], reference["vocab_size"])
    found = measure(args, shape)
    record = make_record(args, reference, cases, found)
    args.record.write_text(json.dumps(record, indent=2) + "\n")
    print_table(record)
    return 0 if record["passed"] else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, required=True, help="the folder that reference.py wrote")
    parser.add_argument("--logits", action="append", required=True, metavar="MODE=FILE")
    parser.add_argument("--revision", required=True, help="source revision of the engine")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    args.logits = {mode: Path(path) for mode, path in (given.split("=", 1) for given in args.logits)}
    return args


class Found:
    """Steps of the reference, of transformers in bfloat16 and of each mode, and how modes differ from the first."""

    def __init__(self, modes: list[str]) -> None:
        self.float32, self.bf16 = Steps(), Steps()
        self.modes = {mode: Steps() for mode in modes}
        # Of each mode, for every step, whether its logits have the first mode's bits.
        self.same_bits: dict[str, list[bool]] = {mode: [] for mode in modes}


def measure(args: argparse.Namespace, shape: tuple[int, int, int]) -> Found:
    files = {"float32": args.reference / "float32.bin", "bf16": args.reference / "bf16.bin"}
    maps = {name: open_logits(path, shape) for name, path in (files | args.logits).items()}
    found = Found(list(args.logits))
    for case in range(shape[0]):
        logits = {name: torch.from_numpy(array[case].copy()).to(args.device) for name, array in maps.items()}
        reference = logits["float32"]
        found.float32.extend(steps_of(reference, reference))
        found.bf16.extend(steps_of(reference, logits["bf16"]))
        first = logits[next(iter(args.logits))].view(torch.int32)
        for mode in args.logits:
            found.modes[mode].extend(steps_of(reference, logits[mode]))
            found.same_bits[mode].extend((logits[mode].view(torch.int32) == first).all(-1).tolist())
    return found


def open_logits(path: Path, shape: tuple[int, int, int]) -> numpy.memmap:
    expected = 4 * math.prod(shape)
    if path.stat().st_size != expected:
        sys.exit(f"{path} has {path.stat().st_size} bytes; f32 logits of shape {list(shape)} have {expected}")
    return numpy.memmap(path, dtype="<f4", mode="r", shape=shape)


def steps_of(reference: torch.Tensor, logits: torch.Tensor) -> Steps:
    """Compares logits `[steps, vocab_size]`."""
    best = reference.topk(2, -1).indices
    pair = logits.gather(-1, best)
    own = logits.topk(2, -1).values
    error = (logits - reference).abs()
    expected = torch.log_softmax(reference.double(), -1)
    kl = (expected.exp() * (expected - torch.log_softmax(logits.double(), -1))).sum(-1)
    return Steps(
        argmax=logits.argmax(-1).tolist(),
        margin=(pair[:, 0] - pair[:, 1]).tolist(),
        own_margin=(own[:, 0] - own[:, 1]).tolist(),
        max_error=error.amax(-1).tolist(),
        mean_error=error.double().mean(-1).tolist(),
        kl=kl.tolist(),
    )


def make_record(args: argparse.Namespace, reference: dict, cases: list[dict], found: Found) -> dict:
    base = next(iter(args.logits))
    noise = noise_of(found.float32, found.bf16)
    over = [margin > noise for margin in found.float32.margin]
    modes = {}
    for mode, steps in found.modes.items():
        same = [a == b for a, b in zip(steps.argmax, found.modes[base].argmax, strict=True)]
        modes[mode] = verdict(found.float32, found.bf16, steps) | {
            f"beside_{base}": {
                "steps_with_the_same_bits": sum(found.same_bits[mode]),
                "steps_with_the_same_token": sum(same),
                "steps_over_noise_with_another_token": sum(o and not s for o, s in zip(over, same, strict=True)),
            },
            "report": read_report(args.logits[mode]),
        }
    # Once for all modes, which one build ran.
    ran = artifacts.merged(mode["report"] and mode["report"].pop("artifacts", None) for mode in modes.values())
    lengths = sorted(len(case["prompt"]) for case in cases)
    return {
        "schema": 1,
        "kind": "model parity",
        "passed": not any(mode["failures"] for mode in modes.values()),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "revision": args.revision,
        # Where the record itself goes is nobody's business.
        "command": [argument if argument != str(args.record) else args.record.name for argument in sys.argv],
        "device": device_facts(args.device),
        "versions": versions(),
        "artifacts": ran,
        "reference": reference,
        "rule": {
            "noise": f"{NOISE_PERCENTILE}th percentile over all steps, nearest rank, of |margin in bfloat16 - margin "
            "in float32|; a margin is the logit of float32's best token less that of its second best",
            "tokens": "where float32's margin exceeds the noise the best token is float32's",
            "errors": "max and mean absolute error of the logits and mean KL(float32 || ours) are at most "
            f"{ERROR_RATIO} times those of transformers in bfloat16",
        },
        "cases": {"count": len(cases), "shortest": lengths[0], "longest": lengths[-1], "prompt_tokens": sum(lengths)},
        "noise": noise,
        "noise_of_own_best_tokens": own_noise_of(found.float32, found.bf16),
        "transformers_bf16": {
            key: value
            for key, value in verdict(found.float32, found.bf16, found.bf16).items()
            if key in ("steps", "steps_over_noise", "differing", "differing_over_noise", "errors")
        },
        "modes": modes,
    }


def read_report(logits: Path) -> dict | None:
    path = Path(f"{logits}.json")
    return json.loads(path.read_text()) if path.is_file() else None


def print_table(record: dict) -> None:
    bf16 = record["transformers_bf16"]
    name = record["reference"]["profile"] or record["reference"]["model"]
    print(f"{name}, {record['reference']['layers']} layers: noise {record['noise']:.4f}, ", end="")
    print(f"{bf16['steps_over_noise']} of {bf16['steps']} steps over it")
    heads = ("max error", "mean error", "KL", "differ", "over noise", "same bits")
    print(f"{'':18}" + "".join(f"{head:>18}" for head in heads[:3]) + "".join(f"{head:>12}" for head in heads[3:]))
    for name, row in ({"transformers bf16": bf16} | record["modes"]).items():
        line = f"{name:18}"
        for key, error in row["errors"].items():
            times = f" ({row['error_ratios'][key]:.2f}x)" if "error_ratios" in row else ""
            line += f"{f'{error:.3g}{times}':>18}"
        line += f"{row['differing']:>12}{row['differing_over_noise']:>12}"
        beside = next((value for key, value in row.items() if key.startswith("beside_")), None)
        print(line + (f"{beside['steps_with_the_same_bits']:>12}" if beside else ""))
    for mode, row in record["modes"].items():
        for failure in row["failures"]:
            print(f"FAIL {mode}: {failure}")
    print("passed" if record["passed"] else "FAILED")


if __name__ == "__main__":
    sys.exit(main())
