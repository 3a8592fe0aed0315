"""One run on the GPU: load, check, compare, time, and write the record."""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from device_check import checks, floors, settled, summary, timing
from device_check.artifact import Artifact, Selection
from device_check.driver import Driver, DriverError, Module
from device_check.supervisor import BROKEN_CONTEXT

# Of a summary: with more, only those that say something is slow.
MOST_LINES = 80
ROOT = Path(__file__).resolve().parent


def run(artifacts: list[Artifact], options: argparse.Namespace) -> int:
    """Check and time the artifacts; 0 if all passed."""
    deadline = timing.Deadline(options.budget)
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    driver = Driver()
    record = header("gpu_check", driver, artifacts, options.revision)
    record |= {"skipped": options.skip, "checks": {}, "same_bits": {}, "times": []}
    began = time.monotonic()

    def beat(name: str) -> None:
        options.heartbeat.write_text(name)

    modules = {}
    for artifact in artifacts:
        beat(artifact.name)
        modules[artifact.name] = Module(driver, artifact)
    print(f"# {record['device']}, driver {record['driver']}: {len(modules)} artifacts loaded", flush=True)
    for name, module in () if options.skip_checks else list(modules.items()):
        beat(name)
        row = guarded(lambda module=module: check(module))
        record["checks"][name] = row
        if row["faults"]:
            del modules[name]
            print(f"FAIL {name}: {'; '.join(row['faults'])[:400]}", flush=True)
        save(record, options.json)
    failed = sum(bool(row["faults"]) for row in record["checks"].values())
    print(f"{len(record['checks']) - failed} passed, {failed} failed", flush=True)
    if not options.skip_checks:
        beat("comparison of schedules")
        record["same_bits"] = guarded(lambda: checks.compare_bits(modules))
        print_bits(record["same_bits"])
        beat("settled keys")
        record["settled"] = guarded(lambda: settled.check(modules))
        failed += len(record["settled"]["faults"])
        print(f"settled keys: {record['settled']}", flush=True)
    if not options.skip_timing:
        time_all(modules, record, options, deadline, beat)
    record["seconds"] = time.monotonic() - began
    save(record, options.json)
    print(f"# record in {options.json}, {record['seconds']:.0f} s")
    return 1 if failed else 0


def time_all(
    modules: dict[str, Module],
    record: dict[str, Any],
    options: argparse.Namespace,
    deadline: timing.Deadline,
    beat: Callable[[str], None],
) -> None:
    """Time what was asked for, and print what the plan chooses beside the fastest."""
    beat("rates of the device")
    rates = floors.measure()
    read = floors.read_rate() / 1e3
    record["rates"] = {"GB/s": rates.bytes / 1e3, "read GB/s": read, "TFLOP/s": rates.operations / 1e6}
    for row in timing.all_times(modules, options.time or list(timing.WHAT), rates, deadline, beat):
        record["times"].append(row)
        print_time(row)
        if len(record["times"]) % 50 == 0:
            save(record, options.json)
    record["timing_cut_short"] = deadline.passed()
    artifacts = {name: module.artifact for name, module in modules.items()}
    selection = Selection.of(options.artifacts)
    lines = summary.lines(record["times"], artifacts, selection, record["multiprocessors"])
    for line in lines if len(lines) <= MOST_LINES else [line for line in lines if line.startswith("*")][:MOST_LINES]:
        print(line)
    print(f"# {sum(line.startswith('*') for line in lines)} of {len(lines)} choices are not the fastest")
    print(f"# {record['rates']}, cut short: {record['timing_cut_short']}")


def check(module: Module) -> dict[str, Any]:
    """Values and status words of one artifact."""
    values, status = checks.check_values(module), checks.check_status(module)
    faults = [f"{row.get('shape', row.get('bad'))}: {fault}" for row in values + status for fault in row["faults"]]
    worst = max((error for row in values for error in row["errors"].values()), default=0.0)
    near = sum(row["near"] for row in values)
    return {"faults": faults, "worst_error": worst, "shapes": len(values), "bad_inputs": len(status), "near": near}


def guarded(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Turn an error into a fault; one that leaves no usable context ends the process, and the supervisor goes on."""
    try:
        return work()
    except Exception as error:
        traceback.print_exc()
        try:
            torch.cuda.synchronize()
        except Exception:
            sys.stdout.flush()
            os._exit(BROKEN_CONTEXT)
        if isinstance(error, DriverError) and "ILLEGAL" in str(error):
            os._exit(BROKEN_CONTEXT)
        return {"faults": [f"{type(error).__name__}: {error}"]}


def header(kind: str, driver: Driver, artifacts: list[Artifact], revision: str | None) -> dict[str, Any]:
    """What the run was made on and with; the caller names the revision where the files were carried out of git."""
    properties = torch.cuda.get_device_properties(0)
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    smi = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return {
        "kind": kind,
        "date": datetime.datetime.now(datetime.UTC).isoformat(),
        "revision": revision or git.stdout.strip() or "unknown",
        "command": sys.argv,
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "driver": subprocess.run(smi, capture_output=True, text=True, check=False).stdout.strip(),
        "cuda_driver": driver.version(),
        "torch": torch.__version__,
        "artifacts": {artifact.name: artifact.manifest["cubin"]["sha256"] for artifact in artifacts},
    }


def save(record: dict[str, Any], path: Path) -> None:
    """Write the record so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, default=str))


def print_bits(report: dict[str, Any]) -> None:
    """Schedules whose bits differ from the first's."""
    for variant, group in report.items():
        different = {name: share for name, share in group.get("rows", {}).items() if share < 1}
        print(f"same bits, {variant}: {different or 'all schedules and batch sizes agree'}", flush=True)


def print_time(row: dict[str, Any]) -> None:
    """One line: the fastest of ours, PyTorch's, and the runners-up."""
    shape = " ".join(str(v) for k, v in row.items() if k not in ("ours", "torch", "bytes", "operations", "floor"))
    ranked = sorted((times["median"], name) for name, times in row["ours"].items())
    if not ranked:
        return
    best = ranked[0][0]
    theirs = f"torch {row['torch']['median']:8.2f} ({row['torch']['median'] / best:4.2f}x)" if "torch" in row else ""
    rate = ""
    if "bytes" in row:
        rate = f" {row['bytes'] / best / 1e3:5.0f} GB/s"
    if "operations" in row:
        rate = f" {row['operations'] / best / 1e6:5.0f} TFLOP/s"
    others = ", ".join(f"{name} {time:.2f}" for time, name in ranked[1:4])
    print(f"{shape}: {best:8.2f} us{rate} {theirs} {ranked[0][1]} [{others}]", flush=True)
