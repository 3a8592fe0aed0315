#!/usr/bin/env python3
"""Say where a decode step's time goes, launch by launch, as it runs: what overlaps, and what is between launches.

    CUPTI=/usr/local/cuda/extras/CUPTI CUDA=/usr/local/cuda   # and the line at the top of trace.c makes trace.so
    run="oxide-infer bench --model DIR --weights random:1 --device cuda"
    run+=" --input-len 512 --output-len 32 --batch 8 --repeat 1"
    TRACE=steps.txt CUDA_INJECTION64_PATH=$PWD/trace.so $run
    python3 benchmarks/kernels/steps.py steps.txt --rows 8 --revision REV --command "$run" --json RECORD.json

Steps of exactly so many rows are taken, each from one `embedding.gather` to the next. What a launch adds to its step is
the time from when all launches before it had ended until it ended, so that the parts make up the step; the record has
means over all steps but the first two and the last two, and one step whole; the step's own time is a median. Traced
steps took 1% longer at 8 rows, 4.5% at 32.
"""

import argparse
import json
import statistics
import sys
from collections import Counter
from pathlib import Path

from listing import FIRST, machine, words

# Steps at either end that others run into.
EDGE = 2


def events(trace: Path) -> list[tuple[int, int, str, int]]:
    """Begin, end, name, and blocks or bytes of every launch and copy, in order of their beginning."""
    found = []
    for line in trace.read_text().splitlines():
        kind, *fields = line.split()
        if kind == "dropped":
            raise SystemExit(f"{trace}: {fields[0]} records are missing")
        start, end, _graph, name, size = fields
        found.append((int(start), int(end), name if kind == "kernel" else f"copy {name}", int(size)))
    return sorted(found)


def steps(found: list[tuple[int, int, str, int]], rows: int) -> list[list[tuple[int, int, str, int]]]:
    """The launches of each step whose tokens are so many, each in turn directly before another such step."""
    cut: list[list[tuple[int, int, str, int]]] = []
    for event in found:
        if event[2].startswith(FIRST):
            cut.append([])
        if cut:
            cut[-1].append(event)
    decodes = [any("paged_decode" in name for _, _, name, _ in step) and step[0][3] == rows for step in cut]
    pairs = zip(cut, decodes, decodes[1:], strict=False)
    return [step for step, decode, next_decode in pairs if decode and next_decode]


def parts(step: list[tuple[int, int, str, int]]) -> Counter:
    """Nanoseconds that each launch adds to a step, by name."""
    added: Counter = Counter()
    ended = step[0][0]
    for _, end, name, _ in step:
        added[name] += max(0, end - ended)
        ended = max(ended, end)
    return added


def describe(chosen: list[list[tuple[int, int, str, int]]]) -> dict:
    """Steps as the record has them, in microseconds."""
    periods = [(after[0][0] - step[0][0]) / 1e3 for step, after in zip(chosen, chosen[1:], strict=False)]
    added: Counter = Counter()
    launches: Counter = Counter()
    for step in chosen:
        added.update(parts(step))
        launches.update(name for _, _, name, _ in step)
    whole = chosen[len(chosen) // 2]
    begin = whole[0][0]
    mean = {
        name: {"launches": launches[name] / len(chosen), "microseconds": round(time / len(chosen) / 1e3, 2)}
        for name, time in added.most_common()
    }
    return {
        "steps": len(chosen),
        "step_microseconds": round(statistics.median(periods), 2),
        "parts_microseconds": round(sum(added.values()) / len(chosen) / 1e3, 2),
        "parts": mean,
        "one_step": [
            [name, size, round((start - begin) / 1e3, 2), round((end - begin) / 1e3, 2)]
            for start, end, name, size in whole
        ],
    }


def main(arguments: list[str] | None = None) -> int:
    """Read the trace and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="what trace.so wrote")
    parser.add_argument("--rows", type=int, required=True, help="rows of the steps that are looked at")
    parser.add_argument("--revision", required=True, help="source revision of the binary")
    parser.add_argument("--command", type=words, required=True, help="the command that was traced")
    parser.add_argument("--json", type=Path, required=True, help="where the record goes")
    options = parser.parse_args(arguments)
    chosen = steps(events(options.trace), options.rows)[EDGE:-EDGE]
    if len(chosen) < 2:
        print(f"the trace has no two decode steps of {options.rows} rows between {2 * EDGE} others", file=sys.stderr)
        return 1
    record = {"schema": 1, "revision": options.revision, "command": options.command, "rows": options.rows, **machine()}
    record |= describe(chosen)
    options.json.write_text(json.dumps(record, indent=1) + "\n")
    for name, part in list(record["parts"].items())[:16]:
        print(f"{part['microseconds']:9.2f} us {part['launches']:6.1f} launches  {name}")
    print(
        f"a step {record['step_microseconds']} us, its parts {record['parts_microseconds']} us, {record['steps']} steps"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
