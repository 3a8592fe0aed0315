#!/usr/bin/env python3
"""Measure every row of matrix.json beside its peers on this machine's GPU, and write one JSON record.

    python3 benchmarks/operators/run.py --lab target/release/oxide-infer-lab --revision REV --json record.json

Each row is compared first, then timed: eager (calls, then one wait; ours by `oxide-infer-lab bench`, in a process of
its own before and after), and as a graph's replays with the L2 cache warm and flushed, in the order ours, theirs,
theirs, ours. A row that fails is recorded with its error, and the next is measured. The record is written after every
row; a process that loses its context is started again behind the row that it was at. `--dry-run` selects the artifact
of every row and needs no GPU.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import matrix  # noqa: E402
from ours import APPEND, ARTIFACTS, ATTENTION, GEMM, NORM, NotCovered, Ours  # noqa: E402

KIND = "operators beside peers"
BROKEN_CONTEXT, ATTEMPTS = 77, 6


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifacts", type=pathlib.Path, default=ARTIFACTS)
    parser.add_argument("--lab", type=pathlib.Path, help="the lab's binary; without it ours has no eager times")
    parser.add_argument("--revision", default="unknown", help="source revision")
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("operators.json"), help="the record")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds; rows that come later are left out")
    parser.add_argument("--only", action="append", default=[], help="rows whose name contains this (repeatable)")
    parser.add_argument("--row-seconds", type=float, default=60.0, help="a row that takes longer hangs")
    parser.add_argument("--dry-run", action="store_true", help="select every artifact, run none")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(wanted: list[str]) -> list[matrix.Row]:
    """The rows to measure."""
    return [row for row in matrix.rows() if not wanted or any(part in row.id for part in wanted)]


def main() -> int:
    """Run the rows in a child, and the lab around them."""
    arguments = options()
    if arguments.dry_run:
        return dry_run(arguments)
    if arguments.child:
        return measure(arguments)
    began = time.monotonic()
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    record = {"kind": KIND, "revision": arguments.revision, "command": sys.argv, "rows": [], "ours_eager": []}
    if arguments.lab:
        record["ours_eager"].append(lab(arguments, "all"))
    save(record, arguments.json)
    for _ in range(ATTEMPTS):
        rest = arguments.budget - (time.monotonic() - began)
        status = watch([sys.executable, "-u", *sys.argv, "--child", "--budget", str(rest)], arguments)
        if status != BROKEN_CONTEXT:
            break
        record = json.loads(arguments.json.read_text())
        record["rows"].append({"id": record.pop("running"), "error": "hung, or lost the context"})
        save(record, arguments.json)
    record = json.loads(arguments.json.read_text())
    if arguments.lab:
        record["ours_eager"].append(lab(arguments, "eager"))
    record["seconds"] = time.monotonic() - began
    save(record, arguments.json)
    failed = [row["id"] for row in record["rows"] if "error" in row]
    print(f"# {len(record['rows'])} rows, {len(failed)} failed, {record['seconds']:.0f} s: {failed}")
    return 1 if failed or len(record["rows"]) < len(chosen(arguments.only)) else 0


def dry_run(arguments: argparse.Namespace) -> int:
    """Which artifact each row takes; 1 if one has none."""
    ours, missed = Ours(arguments.artifacts), 0
    for row in chosen(arguments.only):
        try:
            print(f"{row.id}: {selected(row, ours)}")
        except NotCovered as error:
            missed += 1
            print(f"{row.id}: {error}")
    return 1 if missed else 0


def selected(row: matrix.Row, ours: Ours) -> str:
    """The artifact of a row, whatever its pages are; of keys without pages that of the same keys in pages."""
    if row.family == "gemm":
        return ours.select("gemm.dense", GEMM, row.sizes).name
    if row.family == "rms_norm":
        return ours.select("normalization.rms_norm", NORM, {**row.sizes, "heads": 1}).name
    (q_heads, kv_heads), head_dim = row.sizes["heads"], row.sizes["head_dim"]
    dimensions = {"batch": len(row.sequences), "num_pages": 1000, "max_pages": 100, "head_dim": head_dim}
    dimensions |= {"num_q_heads": q_heads, "num_kv_heads": kv_heads}
    contract, properties = "attention.paged_decode", ATTENTION
    if row.family != "paged_decode":
        contract, properties = "attention.paged_prefill", {**ATTENTION, "mask": "causal"}
        dimensions["tokens"] = row.tokens
    if row.family == "rope_append":
        contract, properties = "kv_cache.rope_append", APPEND
        dimensions |= {"rotary_dim": head_dim, "max_positions": 1}
    return ours.paged(contract, properties, lambda _: dimensions)[0].name


def lab(arguments: argparse.Namespace, modes: str) -> dict:
    """Ours through the Rust runtime."""
    path = arguments.json.with_name(f"{arguments.json.stem}-lab-{modes}.json")
    command = [str(arguments.lab), "bench", "--revision", arguments.revision, "--record", str(path), "--modes", modes]
    command += [part for only in arguments.only for part in ("--only", only)]
    if arguments.artifacts != ARTIFACTS:
        command += ["--artifacts", str(arguments.artifacts)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        output, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        output, status = f"{error.stdout}", -1
    print(f"# lab, {modes}: status {status}", flush=True)
    times = json.loads(path.read_text())["times"] if path.exists() else []
    return {"status": status, "output": output[-6000:], "times": times}


def watch(command: list[str], arguments: argparse.Namespace) -> int:
    """Wait for a child, ending it when it stays at a row for too long."""
    child, record = subprocess.Popen(command), arguments.json
    while child.poll() is None:
        time.sleep(0.3)
        at_a_row = "running" in json.loads(record.read_text())
        if at_a_row and time.time() - record.stat().st_mtime > arguments.row_seconds:
            child.kill()
            child.wait()
            return BROKEN_CONTEXT
    return child.returncode


def save(record: dict, path: pathlib.Path) -> None:
    """Write the record so far, in one step for who reads it meanwhile."""
    part = path.with_suffix(".part")
    part.write_text(dumped(record))
    part.replace(path)


def dumped(record: dict) -> str:
    """JSON with a line for each row, and with times to the nanosecond."""

    def rounded(value: object) -> object:
        if isinstance(value, float) and value > 1e-2:
            return round(value, 3)
        if isinstance(value, list | tuple):
            return [rounded(one) for one in value]
        return {key: rounded(one) for key, one in value.items()} if isinstance(value, dict) else value

    lines = []
    for key, value in rounded(record).items():
        if key == "rows":
            rows = ",\n ".join(json.dumps(row, default=str) for row in value)
            lines.append(f'"rows": [\n {rows}\n]')
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, default=str)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def measure(arguments: argparse.Namespace) -> int:
    """The rows that the record lacks."""
    import rates
    import torch
    from clock import Clock
    from device_check.driver import Driver
    from device_check.session import header

    end = time.monotonic() + arguments.budget
    torch.cuda.init()
    clock, ours = Clock(), Ours(arguments.artifacts)
    record = json.loads(arguments.json.read_text())
    if "rates" not in record:
        facts = header(KIND, Driver(), ours.selection.artifacts, arguments.revision)
        record = {**facts, **record, "order": "ours, theirs, theirs, ours", "rates": rates.measure(clock)}
        print(f"# {record['rates']}", flush=True)
    torch.cuda.empty_cache()
    done = {row["id"] for row in record["rows"]}
    left = [row for row in chosen(arguments.only) if row.id not in done]
    for row in left:
        if time.monotonic() > end:
            break
        record["running"] = row.id
        save(record, arguments.json)
        found = attempt(row, ours, clock)
        record["rows"].append(found)
        del record["running"]
        save(record, arguments.json)
        print(line(found), flush=True)
        torch.cuda.empty_cache()
    return 0


def attempt(row: matrix.Row, ours: Ours, clock) -> dict:
    """A row's times, or why there are none."""
    import torch
    from timed_row import time_row

    try:
        torch.manual_seed(0)
        return time_row(row, ours, clock)
    except Exception as error:
        traceback.print_exc()
        try:
            torch.cuda.synchronize()
        except Exception:
            sys.stdout.flush()
            sys.exit(BROKEN_CONTEXT)
        return {"id": row.id, "family": row.family, "error": f"{type(error).__name__}: {error}"[:1000]}


def line(found: dict) -> str:
    """One line of progress."""
    if "error" in found:
        return f"{found['id']}: {found['error'][:300]}"
    parts = []
    for mode in ("flushed", "warm"):
        ours, theirs = (statistics.median(found[mode][side]) for side in ("ours", "theirs"))
        parts.append(f"{mode} {ours:.2f} us, {theirs / ours:.2f}x")
    peers = ", ".join(f"{name} {statistics.median(times):.1f}" for name, times in found["eager"].items())
    return f"{found['id']}: {'; '.join(parts)} ({found['peer']}); eager {peers}; error {found['difference']:.1e}"


if __name__ == "__main__":
    sys.exit(main())
