#!/usr/bin/env python3
"""Run one odd shape of every artifact under the tools of compute-sanitizer and write one record.

    python3 benchmarks/kernels/sanitize.py --lab target/release/oxide-infer-lab --revision REV --json RECORD.json

Each tool runs over each group of artifacts in a process of its own, which is ended when its time is up: one that is
stuck costs no other. The record is written after every process. It names the artifacts that each tool saw run to their
end, and the hash of each one's cubin, and this fails unless that is every artifact, with no error, under every tool.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ARTIFACTS = Path(__file__).resolve().parents[2] / "crates/oxide-infer-cuda/artifacts"
# Providers whose kernels are artifacts, and the folders of these.
PROVIDERS = {"oxide_tile": "sm_90a", "oxide_native": "sm_90a_native"}
TOOLS = ("memcheck", "initcheck", "synccheck", "racecheck")
# Parts of artifacts' names; together they are in the name of every artifact.
GROUPS = {
    "attention": ("paged_decode", "single_decode"),
    "prefill": ("paged_prefill", "ragged_prefill"),
    "caches": ("rope_append", "paged_append", "rope.", "swiglu.bf16.th", "swiglu.f", "gather", "record_history"),
    "sampling": ("argmax", "sample", "log_probabilities", "candidates", "pick."),
    "norms": ("rms_norm",),
    "products": ("dense.", "dense_clustered."),
    "small products": ("dense_small.", "dense_streamed.", "gemv"),
    "chained products": ("weighted.", "scaled_", "scaled.", "projected."),
}
ERROR_EXIT = 86
# `ERROR SUMMARY: 3 errors`, `RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)`
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error)|(?:RACECHECK SUMMARY: .*?\((\d+) errors?, (\d+) warnings?\))")
RAN = re.compile(r"^ran (\S+): (\d+)$", re.MULTILINE)
KEPT_LINES = 60


def cubins(folder: Path) -> dict[str, str]:
    """The artifacts of a folder, and the hash of each one's cubin."""
    index = json.loads((folder / "index.json").read_text())["artifacts"]
    return {name: json.loads((folder / f"{name}.json").read_text())["cubin"]["sha256"] for name in index}


def run(tool: str, parts: tuple[str, ...], options: argparse.Namespace) -> dict:
    """One tool over one group."""
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch) / "gate.json"
        only = [argument for part in parts for argument in ("--only", part)]
        command = [
            *(options.sanitizer, "--tool", tool, "--error-exitcode", str(ERROR_EXIT), "--print-limit", "20"),
            *(options.lab, "gates", "conformance", "--provider", options.provider, "--cases", "one", *only),
            *(("--artifacts", str(options.artifacts)) if options.artifacts else ()),
            *("--revision", options.revision, "--record", str(record)),
        ]
        began = time.monotonic()
        status, output = bounded(command, Path(scratch) / "output", options.seconds)
        gate = json.loads(record.read_text()) if record.exists() else None
    return {
        "tool": tool,
        "only": parts,
        "seconds": round(time.monotonic() - began, 1),
        # None: ended because its time was up.
        "status": status,
        "command": " ".join(command[:7] + ["oxide-infer-lab"] + command[8:-1]),
        **parsed(output),
        "failures": gate["findings"][0]["failures"] if gate else [],
        "device": gate["device"] if gate else None,
    }


def bounded(command: list[str], log: Path, seconds: float) -> tuple[int | None, str]:
    """Exit status and output of a command; when its time is up its processes are ended, and the status is None."""
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            # The tool runs the program as a child of its own, in the same session.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            status = None
    return status, log.read_text(errors="replace")


def parsed(output: str) -> dict:
    """What the tool and the gate said."""
    summaries = SUMMARY.findall(output)
    reports = [line for line in output.splitlines() if line.startswith("=========") and len(line) > len("========= ")]
    return {
        "errors": sum(int(errors or race or 0) for errors, race, _ in summaries) if summaries else None,
        "warnings": sum(int(warnings or 0) for _, _, warnings in summaries),
        "ran": {name: int(count) for name, count in RAN.findall(output)},
        "reports": reports[:KEPT_LINES],
    }


def passed(step: dict) -> bool:
    """Whether a process ended by itself, and neither the tool nor the gate found anything."""
    return step["status"] == 0 and step["errors"] == 0 and not step["failures"]


def version(sanitizer: str) -> str:
    """What the tool says of itself, in one line."""
    said = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=False).stdout
    return next((line.strip() for line in said.splitlines() if "ersion" in line), said.strip()[:200])


def table(record: dict, wanted: set[str]) -> bool:
    """Print what each tool found; whether all of it is clean."""
    clean = True
    for tool in record["tools"]:
        steps = [step for step in record["steps"] if step["tool"] == tool]
        ran = {name for step in steps for name in step["ran"] if passed(step)}
        stuck = [", ".join(step["only"]) for step in steps if step["status"] is None]
        errors = sum(step["errors"] or 0 for step in steps)
        seconds = sum(step["seconds"] for step in steps)
        failures = sum(len(step["failures"]) for step in steps)
        print(
            f"{tool:10} {len(ran):3} of {len(wanted)} clean, {errors} errors, {failures} wrong, {seconds:.0f} s",
            end="",
        )
        print(f"; time was up: {'; '.join(stuck)}" if stuck else "")
        for step in steps:
            if not passed(step):
                found = [*step["failures"], *step["reports"]][:3]
                print(f"  {', '.join(step['only'])}: status {step['status']}, {step['errors']} errors: {found}")
        clean = clean and ran == wanted
    return clean


def main() -> int:
    """Run every tool over every group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", required=True, help="the lab's binary")
    parser.add_argument("--revision", required=True, help="source revision of the binary")
    parser.add_argument("--json", type=Path, required=True, help="where the record goes")
    parser.add_argument("--sanitizer", default="compute-sanitizer")
    parser.add_argument("--provider", choices=tuple(PROVIDERS), default="oxide_tile", help="whose artifacts")
    parser.add_argument("--tool", choices=TOOLS, action="append", help="only this tool (repeatable)")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--group", choices=tuple(GROUPS), action="append", help="only this group (repeatable)")
    some.add_argument("--only", action="append", help="only artifacts whose name contains this (repeatable)")
    parser.add_argument(
        "--artifacts", type=Path, help="artifacts of this folder, not those that the lab was built with"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="time of one process")
    parser.add_argument("--budget", type=float, default=480.0, help="no process begins after these seconds")
    parser.add_argument(
        "--workers", type=int, default=1, help="so many processes at once, each over few artifacts instead of a group"
    )
    parser.add_argument("--each", type=int, default=4, help="artifacts of a process where there are several workers")
    options = parser.parse_args()
    groups = {name: parts for name, parts in GROUPS.items() if name in (options.group or GROUPS)}
    if options.only:
        groups = {"chosen": tuple(options.only)}
    tools = options.tool or TOOLS
    chosen = [part for parts in groups.values() for part in parts]
    # Without a choice of groups all are wanted, so that one in no group is missed.
    hashes = cubins(options.artifacts or ARTIFACTS / PROVIDERS[options.provider])
    all_are_wanted = not (options.group or options.only)
    admitted = {name for name in hashes if all_are_wanted or any(part in name for part in chosen)}
    began = time.monotonic()
    record = {
        "schema": 1,
        "kind": "sanitize",
        "revision": options.revision,
        "device": None,
        "sanitizer": version(options.sanitizer),
        "tools": tools,
        "provider": options.provider,
        "artifacts": {name: hashes[name] for name in sorted(admitted)},
        "steps": [],
        "not_begun": [],
    }
    if options.workers > 1:
        ordered = sorted(admitted)
        each = range(0, len(ordered), options.each)
        groups = {ordered[i]: tuple(ordered[i : i + options.each]) for i in each}
    pieces = [(tool, group, parts) for tool in tools for group, parts in groups.items()]

    def begin(piece: tuple[str, str, tuple[str, ...]]) -> dict | None:
        return None if time.monotonic() - began > options.budget else run(piece[0], piece[2], options)

    with ThreadPoolExecutor(options.workers) as pool:
        for (tool, group, _), step in zip(pieces, pool.map(begin, pieces), strict=True):
            if step is None:
                record["not_begun"].append(f"{tool}: {group}")
                continue
            record["device"] = step.pop("device") or record["device"]
            record["steps"].append(step)
            said = "ok" if passed(step) else f"status {step['status']}, {step['errors']} errors"
            print(f"# {tool} {group}: {len(step['ran'])} ran, {said}, {step['seconds']} s", flush=True)
            options.json.write_text(json.dumps(record, indent=1) + "\n")
    clean = table(record, admitted)
    if record["not_begun"]:
        print(f"not begun: {record['not_begun']}")
    return 0 if clean and not record["not_begun"] else 1


if __name__ == "__main__":
    sys.exit(main())
