#!/usr/bin/env python3
"""List every kernel that the engine launched, step by step, and say which artifact each belongs to.

    run="oxide-infer bench --model DIR --weights random:1 --device cuda --input-len 128 --output-len 3 --repeat 1"
    ncu --graph-profiling node --metrics gpu__time_duration.sum --csv --page raw --log-file kernels.csv $run
    python3 benchmarks/kernels/listing.py kernels.csv --revision REV --command "$run" --json docs/evidence/RECORD.json

DIR needs only the config.json of the model, here Qwen2.5-1.5B. The run is one prefill of 128 tokens and two decode
steps of one row, once to warm up and once measured: some 1,000 launches. Run both commands on the machine with the GPU:
the record names it, its driver, and the cubin of every artifact that was launched.

A step begins with the kernel of `embedding.gather` with feedback. The record holds one prefill step and one decode
step, the last of each: kernels in order, with the time that ncu measured (alone on the device, clocks as ncu sets
them). It fails if any kernel of the run belongs to no artifact.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

ARTIFACTS = Path(__file__).resolve().parents[2] / "crates/oxide-infer-cuda/artifacts/sm_90a"
FIRST = ("gather_bf16_f32_present", "gather_weighted_bf16")
PREFILL = "paged_prefill"
DECODE = "paged_decode"
NANOSECONDS = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}


def artifacts(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Entry symbol -> name of its artifact, and name -> hash of its cubin."""
    names, cubins = {}, {}
    for path in folder.glob("*.json"):
        if path.name == "index.json":
            continue
        manifest = json.loads(path.read_text())
        cubins[manifest["name"]] = manifest["cubin"]["sha256"]
        names |= {launch["symbol"]: manifest["name"] for launch in manifest["launches"]}
    return names, cubins


def machine() -> dict[str, str]:
    """The GPU and its driver."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    device, driver = said.splitlines()[0].split(", ")
    return {"device": device, "driver": driver}


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


def words(text: str) -> str:
    """A command that says something."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; it must be the command that ncu ran")
    return text.strip()


def main(arguments: list[str] | None = None) -> int:
    """Read the log and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="what ncu wrote")
    parser.add_argument("--revision", required=True, help="source revision of the binary")
    parser.add_argument("--command", type=words, required=True, help="the command that ncu ran")
    parser.add_argument("--artifacts", type=Path, default=ARTIFACTS)
    parser.add_argument("--json", type=Path, required=True, help="where the record goes")
    options = parser.parse_args(arguments)
    (names, cubins), found = artifacts(options.artifacts), launches(options.log)
    strangers = Counter(kernel for kernel, _ in found if kernel not in names)
    for kernel, count in strangers.items():
        print(f"{count} launches of {kernel}, which is no artifact's", file=sys.stderr)
    if strangers or not found:
        return 1
    cut = steps(found)
    launched = sorted({names[kernel] for kernel, _ in found})
    record = {"schema": 1, "revision": options.revision, "command": options.command, **machine()}
    record |= {"artifacts": {name: cubins[name] for name in launched}, "launches": len(found)}
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
