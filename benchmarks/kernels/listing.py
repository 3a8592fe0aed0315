#!/usr/bin/env python3
"""List every kernel that the engine launched, step by step, and say which artifact each belongs to.

    ncu --graph-profiling node --metrics gpu__time_duration.sum --csv --page raw --log-file kernels.csv \\
        oxide-infer bench --model DIR --weights random:1 --device cuda --input-len 128 --output-len 4 --repeat 1
    python3 benchmarks/kernels/listing.py kernels.csv --revision REV --json docs/evidence/RECORD.json

A step begins with the kernel of `embedding.gather` with feedback. The record holds one prefill step and one decode
step, the last of each: kernels in order, with the time that ncu measured (alone on the device, clocks as ncu sets
them). It fails if any kernel of the run belongs to no artifact.
"""

import argparse
import csv
import json
import sys
from collections import Counter
from pathlib import Path

ARTIFACTS = Path(__file__).resolve().parents[2] / "crates/oxide-infer-cuda/artifacts/sm_90a"
FIRST = "gather_bf16_f32_present"
PREFILL = "paged_prefill"
DECODE = "paged_decode"
NANOSECONDS = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}


def symbols(folder: Path) -> dict[str, str]:
    """Entry symbol -> name of its artifact."""
    found = {}
    for path in folder.glob("*.json"):
        manifest = json.loads(path.read_text())
        for launch in manifest.get("launches", ()):
            found[launch["symbol"]] = manifest["name"]
    return found


def launches(log: Path) -> list[tuple[str, float]]:
    """Kernel and microseconds of every launch in ncu's CSV, which begins after its own messages."""
    lines = log.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    rows = csv.DictReader(lines[start:])
    unit_row = None
    found = []
    for row in rows:
        if not row["ID"]:
            unit_row = row
            continue
        if "gpu__time_duration.sum" in row:
            value, unit = row["gpu__time_duration.sum"], (unit_row or {}).get("gpu__time_duration.sum", "ns")
        else:
            value, unit = row["Metric Value"], row["Metric Unit"]
        kernel = row["Kernel Name"].split("(")[0].strip()
        found.append((kernel, float(value.replace(",", "")) * NANOSECONDS[unit] / 1e3))
    return found


def steps(found: list[tuple[str, float]]) -> list[list[tuple[str, float]]]:
    """The launches of each step."""
    cut: list[list[tuple[str, float]]] = []
    for kernel, time in found:
        if kernel.startswith(FIRST):
            cut.append([])
        if cut:
            cut[-1].append((kernel, time))
    return cut


def describe(step: list[tuple[str, float]], names: dict[str, str]) -> dict:
    """A step as the record has it."""
    counts, times = Counter(), Counter()
    for kernel, time in step:
        counts[names[kernel]] += 1
        times[names[kernel]] += time
    return {
        "launches": len(step),
        "microseconds": round(sum(time for _, time in step), 1),
        "artifacts": {
            name: {"launches": counts[name], "microseconds": round(times[name], 1)} for name, _ in times.most_common()
        },
        "order": [kernel for kernel, _ in step],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="what ncu wrote")
    parser.add_argument("--revision", required=True, help="source revision of the binary")
    parser.add_argument("--command", default="", help="the command that ncu ran")
    parser.add_argument("--artifacts", type=Path, default=ARTIFACTS)
    parser.add_argument("--json", type=Path, required=True, help="where the record goes")
    options = parser.parse_args()
    names, found = symbols(options.artifacts), launches(options.log)
    strangers = Counter(kernel for kernel, _ in found if kernel not in names)
    for kernel, count in strangers.items():
        print(f"{count} launches of {kernel}, which is no artifact's", file=sys.stderr)
    if strangers or not found:
        return 1
    cut = steps(found)
    record = {"schema": 1, "revision": options.revision, "command": options.command, "launches": len(found)}
    for name, mark in (("prefill", PREFILL), ("decode", DECODE)):
        chosen = [step for step in cut if any(kernel.startswith(mark) for kernel, _ in step)]
        if not chosen:
            print(f"no {name} step", file=sys.stderr)
            return 1
        record[name] = describe(chosen[-1], names)
        print(f"{name}: {record[name]['launches']} launches, {record[name]['microseconds']} us of kernels")
        for artifact, part in record[name]["artifacts"].items():
            print(f"  {part['launches']:4} {part['microseconds']:9.1f} us  {artifact}")
    options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{len(found)} launches, all of artifacts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
