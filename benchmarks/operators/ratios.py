"""Writes what the newest record of run.py says into docs/operators-performance.md, between marks that name a block.

Usage: ratios.py           writes the blocks
       ratios.py --check   changes nothing; fails and shows the difference if a block is not what the record gives
       ratios.py FILE      prints the summary of a record
Needs nothing but Python.
"""

import dataclasses
import json
import math
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]

import blocks  # noqa: E402
import matrix  # noqa: E402

EVIDENCE = ROOT / "docs/evidence"
PAGE = "docs/operators-performance.md"
TOOL = "benchmarks/operators/ratios.py"
# Ratios of a peer's time to ours.
EAGER, FLUSHED, LEAST, GEMM, PREFILL = 2.0, 1.05, 0.95, 0.97, 0.95
# Shares of the machine's rates.
DECODE, STREAM, FEW = 0.9, 0.8, 0.9
LONG_CACHE, LONG_STREAM, LONG_PROMPT = 100e6, 500e6, 2048
FEW_ROWS, FEW_MORE_US = 16, 2.5
ROWS_OF_PRODUCTS = (1, 8, 16, 32, 64, 128, 256, 512, 2048, 8192)
FAMILIES = {
    "paged_decode": "Decode over pages",
    "paged_prefill": "Prefill over pages",
    "ragged_prefill": "Prefill without pages",
    "rope_append": "Rotation and append",
    "rms_norm": "RMS norm",
}


@dataclasses.dataclass(frozen=True)
class Found:
    """What a record says of a row, in microseconds; `None` where it was not measured."""

    row: matrix.Row
    entry: dict
    eager: float | None
    peer_eager: float | None
    # Of calls that are graphs of one.
    alone: float | None = None

    def median(self, mode: str, side: str) -> float:
        """Of one side's samples."""
        return statistics.median(self.entry[mode][side])

    def ratio(self, mode: str) -> float:
        """The peer's time over ours."""
        return self.median(mode, "theirs") / self.median(mode, "ours")

    @property
    def eager_ratio(self) -> float | None:
        """The same of calls that a host makes."""
        return self.peer_eager / self.eager if self.eager and self.peer_eager else None

    @property
    def alone_ratio(self) -> float | None:
        """The same where each of ours is a graph of one call; the peer's is not."""
        return self.peer_eager / self.alone if self.alone and self.peer_eager else None


@dataclasses.dataclass(frozen=True)
class Target:
    """One thing that is asked for, and what was found; `None` where nothing was measured."""

    what: str
    found: str
    met: bool | None


def newest() -> pathlib.Path | None:
    """The record of the latest date, which its name begins with."""
    return max(EVIDENCE.glob("*-h200-operators.json"), default=None)


def read(record: dict) -> tuple[list[Found], list[dict]]:
    """Rows that were measured, and those that failed."""
    sizes = {row.id: row for row in matrix.rows()}
    eager: dict[str, list[float]] = {}
    alone: dict[str, list[float]] = {}
    for turn in record["ours_eager"]:
        for times in turn["times"]:
            eager.setdefault(times["row"], []).extend(times["eager_us"])
            alone.setdefault(times["row"], []).extend(times.get("graph_of_one_us") or [])
    found, failed = [], []
    for entry in record["rows"]:
        if "error" in entry or entry["id"] not in sizes:
            failed.append(entry)
            continue
        ours, graphs = eager.get(entry["id"]), alone.get(entry["id"])
        peers = [statistics.median(samples) for samples in entry["eager"].values()]
        peer = min(peers, default=None)
        eager_us, alone_us = (statistics.median(samples) if samples else None for samples in (ours, graphs))
        found.append(Found(sizes[entry["id"]], entry, eager_us, peer, alone_us))
    return found, failed


def geometric_mean(values: list[float]) -> float:
    """Of ratios; NaN of none."""
    return math.exp(statistics.fmean(math.log(value) for value in values)) if values else math.nan


def at_least(what: str, value: float | None, goal: float, unit: str = "", note: str = "") -> Target:
    """A target of a number."""
    if value is None or math.isnan(value):
        return Target(what, "–", None)
    return Target(what, f"{value:.2f}{unit}{note}", value >= goal)


def targets(found: list[Found], rates: dict) -> list[Target]:
    """Everything that is asked of the rows together."""
    gemm = [one for one in found if one.row.family == "gemm"]
    others = [one for one in found if one.row.family != "gemm"]
    ratios = [one.ratio("flushed") for one in others]
    slow = sum(ratio < LEAST for ratio in ratios)
    eager = [one.eager_ratio for one in others if one.eager_ratio]
    alone = [one.alone_ratio for one in others if one.alone_ratio]
    read, copy = rates["read_GB/s"] * 1e3, rates["copy_GB/s"] * 1e3

    def share(rows: list[Found], rate: float) -> float | None:
        return min((one.row.bytes / one.median("flushed", "ours") / rate for one in rows), default=None)

    long_decodes = [one for one in found if one.row.family == "paged_decode" and one.row.cache_bytes > LONG_CACHE]
    prompts = [one for one in found if one.row.family.endswith("prefill") and one.row.tokens >= LONG_PROMPT]
    few = [one for one in gemm if one.row.sizes["m"] <= FEW_ROWS]
    late = sum(one.median("flushed", "ours") > few_rows_us(one.row, rates) for one in few)
    return [
        at_least(
            f"calls (eager), all but products, geometric mean ≥ {EAGER:g}",
            geometric_mean(eager),
            EAGER,
            note=f" over {len(eager)} rows",
        ),
        at_least(
            "the same where each call of ours is a graph of its own",
            geometric_mean(alone),
            EAGER,
            note=f" over {len(alone)} rows",
        ),
        at_least(
            f"replays with the cache flushed, all but products, geometric mean ≥ {FLUSHED:g}",
            geometric_mean(ratios),
            FLUSHED,
            note=f" over {len(ratios)} rows",
        ),
        Target(
            f"of these, no row under {LEAST:g}",
            f"{slow} under, the least {min(ratios):.2f}" if ratios else "–",
            slow == 0 if ratios else None,
        ),
        at_least(
            f"decode of more than 100 MB of keys and values, least share of the rate of reads ≥ {DECODE:g}",
            share(long_decodes, read),
            DECODE,
        ),
        at_least(
            f"prefill of {LONG_PROMPT:,} and more, least ratio ≥ {PREFILL:g}",
            min((one.ratio("flushed") for one in prompts), default=None),
            PREFILL,
        ),
        *(
            at_least(
                f"{FAMILIES[family]} of 256 MB, share of the rate of copies ≥ {STREAM:g}",
                share([one for one in found if one.row.family == family and one.row.bytes > LONG_STREAM], copy),
                STREAM,
            )
            for family in ("rms_norm", "rope_append")
        ),
        at_least(
            f"products, geometric mean ≥ {GEMM:g}",
            geometric_mean([one.ratio("flushed") for one in gemm]),
            GEMM,
            note=f" over {len(gemm)} rows",
        ),
        Target(
            f"products of at most {FEW_ROWS} rows within bytes / ({FEW:g} × rate of reads) + {FEW_MORE_US:g} us",
            f"{len(few) - late} of {len(few)}" if few else "–",
            late == 0 if few else None,
        ),
    ]


def few_rows_us(row: matrix.Row, rates: dict) -> float:
    """What a product of few rows may take."""
    return row.bytes / (FEW * rates["read_GB/s"] * 1e3) + FEW_MORE_US


def word(met: bool | None) -> str:
    """As tables have it."""
    return "not measured" if met is None else "met" if met else "**missed**"


def times(value: float | None, goal: float = LEAST) -> str:
    """A ratio; one that loses is marked."""
    if value is None:
        return "–"
    return f"**{value:.2f}**" if value < goal else f"{value:.2f}"


def summary_block(record: dict, name: str) -> str:
    """The targets."""
    found, failed = read(record)
    rates = record["rates"]
    goals = targets(found, rates)
    lines = [
        f"From [{name}](evidence/{name}) (revision {record['revision'][:7]}, {record['device']}, driver "
        f"{record['driver']}; of the machine in the same run: reads {rates['read_GB/s']:,.0f} GB/s, copies "
        f"{rates['copy_GB/s']:,.0f} GB/s,",
        f"bf16 products {rates['TFLOP/s']:,.0f} TFLOP/s). {len(found)} of {len(matrix.rows())} rows were measured. "
        "Ratios are the peer's time over ours: over 1 where ours is faster.",
        "",
        "| asked | measured | |",
        "|---|---|---|",
        *(f"| {goal.what} | {goal.found} | {word(goal.met)} |" for goal in goals),
    ]
    if failed:
        lines += ["", "Rows without times:", ""]
        reasons = ((entry["id"], entry.get("error", "not in the matrix")) for entry in failed)
        lines += [f"- {name}: {' '.join(reason.split())[:200]}" for name, reason in reasons]
    return "\n".join(lines)


def rate(one: Found, rates: dict) -> str:
    """What ours reaches of the machine with the cache flushed: of its reads or copies, or of its products."""
    took = one.median("flushed", "ours")
    if one.row.family.endswith("prefill"):
        return f"{one.row.operations / took / 1e6:,.0f} TFLOP/s"
    which = "read_GB/s" if one.row.family == "paged_decode" else "copy_GB/s"
    return f"{one.row.bytes / took / 1e3 / rates[which]:.0%}"


def rows_block(record: dict) -> str:
    """Every row but products."""
    found, _ = read(record)
    lines = []
    for family, title in FAMILIES.items():
        of = [one for one in found if one.row.family == family]
        if not of:
            continue
        lines += [
            f"**{title}**",
            "",
            "| row | calls us | peer | ratio | replays, warm us | ratio | flushed us (least to greatest) | peer "
            "| ratio | of the machine | layout, peer's | peer |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
            *(row_line(one, record["rates"]) for one in of),
            "",
        ]
    return "\n".join(lines[:-1])


def row_line(one: Found, rates: dict) -> str:
    """A line of a family's table."""
    ours, theirs = one.entry["flushed"]["ours"], one.median("flushed", "theirs")

    def us(value: float | None) -> str:
        return "–" if value is None else f"{value:,.1f}"

    layouts = f"{one.entry['layout']}, {one.entry['peer_layout']}" if one.entry["layout"] else "–"
    cells = [
        one.row.id,
        us(one.eager),
        us(one.peer_eager),
        times(one.eager_ratio),
        us(one.median("warm", "ours")),
        times(one.ratio("warm")),
        f"{us(statistics.median(ours))} ({us(min(ours))} to {us(max(ours))})",
        us(theirs),
        times(one.ratio("flushed")),
        rate(one, rates),
        layouts,
        one.entry["flushed"]["peer"],
    ]
    return f"| {' | '.join(cells)} |"


def products_block(record: dict) -> str:
    """Ratios of products by rows, and those of few rows beside what reading takes."""
    found, _ = read(record)
    gemm = {one.row.id: one for one in found if one.row.family == "gemm"}
    names = dict.fromkeys(row.id.rpartition(" m ")[0] for row in matrix.rows() if row.family == "gemm")
    lines = ["| product | " + " | ".join(f"{m:,}" for m in ROWS_OF_PRODUCTS) + " |", "|---" * 11 + "|"]
    for name in names:
        cells = []
        for m in ROWS_OF_PRODUCTS:
            one = gemm.get(f"{name} m {m}")
            cells.append(times(one.ratio("flushed")) if one else "–")
        lines.append(f"| {name.removeprefix('gemm ')} | {' | '.join(cells)} |")
    means = []
    for m in ROWS_OF_PRODUCTS:
        of = [one.ratio("flushed") for one in gemm.values() if one.row.sizes["m"] == m]
        means.append(times(geometric_mean(of), GEMM) if of else "–")
    lines.append(f"| geometric mean | {' | '.join(means)} |")
    eager = []
    for m in ROWS_OF_PRODUCTS:
        of = [one.eager_ratio for one in gemm.values() if one.row.sizes["m"] == m and one.eager_ratio]
        eager.append(times(geometric_mean(of), GEMM) if of else "–")
    lines.append(f"| the same of calls | {' | '.join(eager)} |")
    few = [one for one in gemm.values() if one.row.sizes["m"] <= FEW_ROWS]
    late = [one for one in few if one.median("flushed", "ours") > few_rows_us(one.row, record["rates"])]
    if late:
        lines += ["", f"Of at most {FEW_ROWS} rows, us (may take): "]
        lines[-1] += "; ".join(
            f"{one.row.id.removeprefix('gemm ')} {one.median('flushed', 'ours'):.1f} "
            f"({few_rows_us(one.row, record['rates']):.1f})"
            for one in late
        )
        lines[-1] += "."
    return "\n".join(lines)


def all_blocks() -> dict[str, dict[str, str]]:
    """File, name of the block, text."""
    path = newest()
    if path is None:
        return {PAGE: dict.fromkeys(("targets", "rows", "products"), "There is no record yet.")}
    record = json.loads(path.read_text())
    found = {"targets": summary_block(record, path.name), "rows": rows_block(record)}
    return {PAGE: {**found, "products": products_block(record)}}


def main(arguments: list[str]) -> int:
    """Write, check, or print."""
    if len(arguments) == 1 and arguments[0] != "--check":
        record = json.loads(pathlib.Path(arguments[0]).read_text())
        print(summary_block(record, pathlib.Path(arguments[0]).name), products_block(record), sep="\n\n")
        return 0
    if arguments not in ([], ["--check"]):
        raise SystemExit(__doc__)
    wrong = blocks.write(ROOT, TOOL, all_blocks(), check=bool(arguments))
    for reason in wrong:
        print(reason)
    if wrong:
        print(f"write the blocks with `python3 {TOOL}`")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
