"""Writes what the records say into README.md and docs/performance.md, between marks that name a block.

Usage: report.py           writes the blocks
       report.py --check   changes nothing; fails and shows the difference if a block is not what the records give,
                           or if a plot was drawn from other inputs
Needs nothing but Python.
"""

import pathlib
import sys

import plot_inputs
import records
from records import Measured, find

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

import blocks  # noqa: E402

TOOL = "benchmarks/speed/report.py"
# What the first column of the README's table counts.
CONCURRENCIES = (1, 16, 64, 256)


def number(value: float) -> str:
    """Four digits or so: 2.19, 48, 8,989."""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def precise(value: float) -> str:
    """A measurement with four digits or more: 1.200, 10.25, 734, 29,033."""
    decimals = 3 if value < 10 else 2 if value < 100 else 0
    return f"{value:,.{decimals}f}"


def given(value: float) -> str:
    """A number as it was written down."""
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def server(record: dict, concurrency: int, metric: str) -> float:
    found = find(record, f"summary.{metric}", "server", {"concurrency": concurrency})
    if found is None:
        raise SystemExit(f"the record has no {metric} of the server at concurrency {concurrency}")
    return found.median


def offline(record: dict, batch: int, input_len: int, metric: str) -> float:
    where = {"model": "Qwen2.5-1.5B", "batch": batch, "input_len": input_len} | records.OWN_SETTING
    found = find(record, f"speed.{metric}", "runs", where)
    if found is None:
        raise SystemExit(f"the record has no {metric} of batch {batch} with {input_len} tokens in")
    return found.median


def cpu_block(cpu: dict) -> str:
    engines = cpu["summary"]["engines"]
    of = {
        name: {key: engines[name][f"{key}_tokens_per_s"]["median"] for key in ("prefill", "decode")} for name in engines
    }
    ours, llama = of["oxide-infer"], of["llama.cpp"]
    return (
        "On two cores with the demo model, beside llama.cpp in one run ([record](benchmarks/engines/record.md), "
        "`benchmarks/engines/run.sh`):\n"
        f"prefill of 512 tokens {ours['prefill']:.0f} tok/s against {llama['prefill']:.0f}, "
        f"decode {ours['decode']:.0f} tok/s against {llama['decode']:.0f}."
    )


def gpu_block(record: dict, vllm: dict, name: str) -> str:
    lines = [
        "On one H200, Qwen2.5-1.5B's shape with random weights, 512 tokens in and 128 out, over HTTP "
        f"([record](docs/evidence/{name}), revision {record['revision'][:7]}).",
        "vLLM 0.26 was measured on a machine of the same kind, not in the same run:",
        "",
        "| requests at once | output tok/s | vLLM | TTFT p99 ms | vLLM |",
        "|---|---|---|---|---|",
    ]
    for concurrency in CONCURRENCIES:
        cells = [
            number(server(of, concurrency, metric))
            for metric in ("output_tokens_per_s", "ttft_ms.p99")
            for of in (record, vllm)
        ]
        lines.append(f"| {concurrency} | {' | '.join(cells)} |")
    first, step = offline(record, 1, 128, "first_token_ms"), offline(record, 1, 128, "decode_step_ms")
    prefill = round(offline(record, 1, 4096, "prefill_tokens_per_s"), -3)
    lines += [
        "",
        f"In one process and not over HTTP, the first token of a prompt of 128 comes after {number(first)} ms and the "
        f"next every {number(step)} ms; 4,096 tokens are read at {number(prefill)} tok/s.",
    ]
    return "\n".join(lines)


def verdict(target: dict, value: float) -> str:
    reached = value <= target["target"] if target["better"] == "lower" else value >= target["target"]
    return "met" if reached else "**missed**"


def target_row(target: dict, record: dict, vllm: dict) -> str:
    unit, section, where = target["unit"], target.get("section"), target.get("where")
    ours, theirs = (
        find(record, target["metric"], section, records.ours(target)),
        find(vllm, target["metric"], section, where),
    )
    goal = ("≤ " if target["better"] == "lower" else "≥ ") + given(target["target"])
    ratio = "–"
    if ours and theirs:
        better = (ours.median, theirs.median) if target["better"] == "higher" else (theirs.median, ours.median)
        ratio = f"{better[0] / better[1]:.2f}"
    if ours:
        found, met = spread(ours), verdict(target, ours.median)
    else:
        found, met = not_told_apart(target, record)
    peer = given(theirs.median) if theirs else "–"
    if not theirs and "in_all" in target:
        whole = find(vllm, target["in_all"] + ".p99", section, where)
        peer = f"{given(whole.median)} in all" if whole else "–"
    return f"| {target['work']}, {unit} | {found} | {goal} | {met} | {peer} | {ratio} |"


def not_told_apart(target: dict, record: dict) -> tuple[str, str]:
    """What the greatest time of all requests says of a part of them: no percentile of the part is above it."""
    whole = find(record, target.get("in_all", "-") + ".max", target.get("section"), target.get("where"))
    if whole is None:
        return "–", "not measured"
    met = verdict(target, whole.median) == "met"
    return f"at most {precise(whole.median)}", "met" if met else "not measured"


def spread(value: Measured) -> str:
    if value.least is None:
        return precise(value.median)
    return f"{precise(value.median)} ({precise(value.least)} to {precise(value.greatest)})"


def targets_block(targets: list, record: dict, vllm: dict, name: str) -> str:
    beside = record.get("limits_measured", "in the same run" if "limits" in record else "beside the products")
    limits = record.get("limits") or record["limits_measured_beside_the_products"]
    rows = [target_row(target, record, vllm) for target in targets]
    counts = {word: sum(f"| {word} |" in row for row in rows) for word in ("met", "**missed**", "not measured")}
    return "\n".join(
        [
            f"From [{name}](evidence/{name}) (revision {record['revision'][:7]}, {record['device']}, driver "
            f"{record['driver']}; of the machine, measured {beside}: memory {limits['GB/s']:,.0f} GB/s, "
            f"bf16 products {limits['TFLOP/s']:,.0f} TFLOP/s)",
            f"and [{records.VLLM.name}](evidence/{records.VLLM.name}). {counts['met']} met, "
            f"{counts['**missed**']} missed, {counts['not measured']} not measured. Medians (least to greatest where",
            "there were several measurements); the last column is over 1 where this engine is better.",
            "",
            "| work | measured | target | | vLLM 0.26 | times vLLM |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
    )


def all_blocks() -> dict[str, dict[str, str]]:
    """File, name of the block, text."""
    path = records.newest()
    record, vllm = records.load(path), records.load(records.VLLM)
    notes = path.with_suffix(".md").name
    targets = records.load(records.TARGETS)["rows"]
    return {
        "README.md": {"cpu": cpu_block(records.load(records.CPU)), "gpu": gpu_block(record, vllm, notes)},
        "docs/performance.md": {"targets": targets_block(targets, record, vllm, path.name)},
    }


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        raise SystemExit(__doc__)
    wrong = blocks.write(records.ROOT, TOOL, all_blocks(), check=bool(arguments))
    wrong += [] if not arguments else plot_inputs.stale()
    for reason in wrong:
        print(reason)
    if wrong:
        print(
            "write the blocks with `python3 benchmarks/speed/report.py`, draw the plots with `benchmarks/speed/plot.sh`"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
