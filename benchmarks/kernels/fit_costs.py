#!/usr/bin/env python3
"""Fit the costs by which a plan chooses among the schedules of matrix products to times measured on a device.

    benchmarks/kernels/device.sh REVISION products
    python3 benchmarks/kernels/fit_costs.py /tmp/oxide-infer-records/products.json

Prints a `[[select]]` table for each set of properties, to put into `kernels/tilelang/profiles/sm_90a.toml` in the place
of those of `gemm.dense`, and how good the choice by these costs is. A schedule with tiles of `rows` by `columns`, each
cut into `splits` along k, takes on 132 multiprocessors

    tiles  = ceil_div(m, rows) * ceil_div(n, columns) * splits
    waves  = ceil_div(tiles, 132), or max(tiles, 132) / 132 where a multiprocessor has room for several blocks;
             where blocks stay in clusters, of the clusters' tiles of so many times as many rows, and of the clusters
    slices = ceil_div(ceil_div(k, 64), splits)
    time   = max(bytes of the weights / 4.2 TB/s, a + waves * (b + c * slices) + d * bytes of the partial sums)

with a, b, c and d not below 0, by least squares of relative errors over what was measured of the schedule; d is 0
without splits. Every range of rows is fitted by itself. Regret is the time of the schedule that the costs choose over
that of the fastest, among those that were timed; where the costs would rather have another, that is said. Costs that
were fitted without a model, and choose for it, show what to expect of models that were not timed.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "kernels/tilelang"))

from device_check.artifact import Artifact, load_all, value  # noqa: E402

ARTIFACTS = ROOT / "crates/oxide-infer-cuda/artifacts/sm_90a"
MULTIPROCESSORS = 132
# Bytes of shared memory that a multiprocessor has, and that a block takes beside its own.
MEMORY_OF_MULTIPROCESSOR, MEMORY_OF_BLOCK = 228 << 10, 1 << 10
# Columns of k that a tile takes at a time.
SLICE = 64
# Bytes of a nanosecond: the rate at which weights come from memory at best; 4.8 by the data sheet.
MEMORY_RATE = 4.2
# The largest value of a dimension in a rule.
UNLIMITED = 2**31 - 1
# Rows that have rules, and a fit, of their own: what bounds a schedule differs between them.
RANGES = ((1, 16), (17, 64), (65, UNLIMITED))
# Of an element of the partial sums.
SUM_BYTES = 4
# What a pivot has left of its diagonal element when equations depend on each other.
SINGULAR = 1e-9
WORST = 10
Shape = Mapping[str, int]


@dataclass(frozen=True)
class Schedule:
    """An artifact of a matrix product, and what its cost is made of."""

    name: str
    contract: str
    properties: tuple[tuple[str, Any], ...]
    algorithm: str
    rows: int
    columns: int
    splits: int
    # Blocks of a cluster, whose tiles are one of all their rows.
    cluster: int
    # Whether blocks share a multiprocessor, so that one with more than its share of them takes no whole turn more.
    shares: bool
    # Bytes of the weights that an element of [n, k] stands for.
    weight_bytes: int

    @classmethod
    def of(cls, artifact: Artifact) -> "Schedule":
        """By the manifest. The tensor map of the weights has a box of a tile's columns."""
        (columns,) = {
            parameter["box"][1]
            for parameter in artifact.manifest["launches"][0]["parameters"]
            if parameter["kind"] == "tensor_map" and parameter["operand"] == "weight"
        }
        launch = artifact.manifest["launches"][0]
        memory = launch["dynamic_shared_memory"] + launch["resources"]["static_shared_memory"] + MEMORY_OF_BLOCK
        weights_of_column, _ = artifact.shape("weight", {"m": 1, "n": 1, "k": 1})
        return cls(
            name=artifact.name,
            contract=artifact.manifest["contract"],
            properties=tuple(sorted(artifact.manifest["properties"].items())),
            algorithm=artifact.manifest["algorithm"],
            rows=artifact.schedule["block_m"],
            columns=columns,
            splits=artifact.schedule.get("splits", 1),
            cluster=artifact.schedule.get("cluster", 1),
            shares=2 * memory <= MEMORY_OF_MULTIPROCESSOR,
            weight_bytes=2 * weights_of_column,
        )

    @property
    def tiles(self) -> str:
        """How many blocks' work there is, as an expression."""
        splits = f" * {self.splits}" if self.splits > 1 else ""
        return f"ceil_div(m, {self.rows * self.cluster}) * ceil_div(n, {self.columns}){splits}"

    @property
    def places(self) -> int:
        """How many of them are worked on at once."""
        return MULTIPROCESSORS // self.cluster

    @property
    def slices(self) -> str:
        """Slices of k in a tile, as an expression."""
        slices = f"ceil_div(k, {SLICE})"
        return f"ceil_div({slices}, {self.splits})" if self.splits > 1 else slices

    @property
    def floor(self) -> str:
        """Nanoseconds of loading the weights, as an expression."""
        return f"n * k / {round(MEMORY_RATE * 1000 / self.weight_bytes)}"

    def features(self, shape: Shape) -> list[float]:
        """What a, b, c and d are multiplied with."""
        tiles, slices = (value(expression, shape) for expression in (self.tiles, self.slices))
        waves = max(tiles / self.places, 1.0) if self.shares else math.ceil(tiles / self.places)
        megabytes = self.splits * SUM_BYTES * shape["m"] * shape["n"] / 1e6 if self.splits > 1 else 0.0
        return [1.0, waves, waves * slices, megabytes]

    def cost(self, coefficients: Sequence[float]) -> str:
        """The whole expression, in whole nanoseconds; terms of 0 are left out."""
        a, b, c = (round(coefficient) for coefficient in coefficients[:3])
        # Nanoseconds of a million elements: multiplied before the second division, no product leaves 64 bits.
        d = round(coefficients[3] * self.splits * SUM_BYTES)
        of_wave = f"({b} + {c} * {self.slices})" if b else f"{c} * {self.slices}"
        terms = [str(a)] if a else []
        if self.shares:
            terms += [f"max({self.tiles}, {self.places}) * {of_wave} / {self.places}"]
        else:
            terms += [f"ceil_div({self.tiles}, {self.places}) * {of_wave}"]
        terms += [f"m * n / 1000 * {d} / 1000"] if d else []
        return f"max({self.floor}, {' + '.join(terms)})"


@dataclass(frozen=True)
class Product:
    """A shape, and the nanoseconds that schedules of equal properties took for it."""

    what: str
    model: str
    shape: Shape
    times: Mapping[Schedule, float]


@dataclass(frozen=True)
class Outcome:
    """What costs choose for a product."""

    product: Product
    chosen: Schedule
    fastest: Schedule
    # A schedule that was not timed for this product, and that the costs would rather have.
    untimed: Schedule | None

    @property
    def regret(self) -> float:
        """Time of the chosen over that of the fastest."""
        return self.product.times[self.chosen] / self.product.times[self.fastest]


# The costs of the schedules that were timed with rows of a range.
Costs = Mapping[tuple[int, int], Mapping[Schedule, str]]


def main() -> int:
    """Parse the command line, fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "records", nargs="+", type=Path, help="what gpu_check.py --time products wrote; of equal times the last counts"
    )
    parser.add_argument("--artifacts", type=Path, default=ARTIFACTS, help="the artifacts that were timed")
    options = parser.parse_args()
    artifacts = load_all(options.artifacts, "")
    rows = [row for record in options.records for row in json.loads(record.read_text())["times"]]
    products = read(latest(rows), artifacts)
    if not products:
        print(f"{options.records} have no times of products of these artifacts", file=sys.stderr)
        return 1
    costs = fit(products)
    outcomes = choices(costs, products)
    for line in (*tables(costs), *report("fitted to all", outcomes), *held_out(products)):
        print(line)
    timed = {schedule for of_range in costs.values() for schedule in of_range}
    for schedule in sorted(timed - {outcome.chosen for outcome in outcomes}, key=lambda schedule: schedule.name):
        print(f"# never chosen: {schedule.name}")
    names, contracts = {schedule.name for schedule in timed}, {schedule.contract for schedule in timed}
    for artifact in artifacts:
        if artifact.manifest["contract"] in contracts and artifact.name not in names:
            print(f"# not timed, so without a cost: {artifact.name}")
    return 0


def latest(rows: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """The products of several records, one row each, with the latest time of every schedule."""
    found: dict[tuple, dict[str, Any]] = {}
    for row in (row for row in rows if row["what"] == "product"):
        key = tuple(row[name] for name in ("model", "projection", "m", "n", "k"))
        found.setdefault(key, {**row, "ours": {}})["ours"].update(row["ours"])
    return found.values()


def read(rows: Iterable[Mapping[str, Any]], artifacts: Iterable[Artifact]) -> list[Product]:
    """Products, one for each set of properties that was timed on a shape."""
    known = {artifact.name: artifact for artifact in artifacts}
    found = []
    for row in rows:
        shape = {name: row[name] for name in ("m", "n", "k")}
        alike: dict[tuple, dict[Schedule, float]] = defaultdict(dict)
        for name, sample in row["ours"].items():
            if name not in known:
                raise SystemExit(f"the record times {name}, which is not among the artifacts")
            schedule = Schedule.of(known[name])
            alike[schedule.properties][schedule] = sample["median"] * 1e3
        found += [Product(f"{row['model']} {row['projection']}", row["model"], shape, alike[key]) for key in alike]
    return found


def fit(products: Sequence[Product]) -> Costs:
    """The costs of every range of rows."""
    return {rows: fit_range([product for product in products if inside(product, rows)]) for rows in RANGES}


def inside(product: Product, rows: tuple[int, int]) -> bool:
    """Whether the product has a number of rows of a range."""
    return rows[0] <= product.shape["m"] <= rows[1]


def fit_range(products: Iterable[Product]) -> Mapping[Schedule, str]:
    """The cost of every schedule that was timed; one of the same tiles with and without a bias is fitted once."""
    samples: dict[tuple, list[list[float]]] = defaultdict(list)
    schedules: dict[Schedule, tuple] = {}
    for product in products:
        for schedule, nanoseconds in product.times.items():
            key = schedule.algorithm, tuple(item for item in schedule.properties if item[0] != "bias")
            schedules[schedule] = key
            samples[key].append([x / nanoseconds for x in schedule.features(product.shape)])
    coefficients = {key: least_squares(rows) for key, rows in samples.items()}
    return {schedule: schedule.cost(coefficients[key]) for schedule, key in schedules.items()}


def least_squares(rows: Sequence[Sequence[float]]) -> list[float]:
    """Coefficients, none below 0, whose products with each row come nearest to 1.

    The best of the unbounded solutions over every subset of the coefficients that happen to be in bounds, the rest
    being 0, is the best in bounds; with four there are fifteen.
    """
    width = len(rows[0])
    best, least = [0.0] * width, float("inf")
    for size in range(1, width + 1):
        for subset in itertools.combinations(range(width), size):
            matrix = [[sum(row[i] * row[j] for row in rows) for j in subset] for i in subset]
            solution = solve(matrix, [sum(row[i] for row in rows) for i in subset])
            if solution is None or min(solution) < 0:
                continue
            full = [0.0] * width
            for i, coefficient in zip(subset, solution, strict=True):
                full[i] = coefficient
            error = sum((sum(c * x for c, x in zip(full, row, strict=True)) - 1) ** 2 for row in rows)
            if error < least:
                best, least = full, error
    return best


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float] | None:
    """The solution of linear equations by elimination, or nothing if they do not determine one."""
    size = len(right)
    rows = [[*row, last] for row, last in zip(matrix, right, strict=True)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        if abs(rows[pivot][i]) <= SINGULAR * abs(matrix[i][i]):
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in (r for r in range(size) if r != i):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i], strict=True)]
    return [rows[i][size] / rows[i][i] for i in range(size)]


def choices(costs: Costs, products: Iterable[Product]) -> list[Outcome]:
    """What the costs choose, by the expressions as a plan evaluates them."""
    found = []
    for product in products:
        properties = next(iter(product.times)).properties
        of_range = next(of_range for rows, of_range in costs.items() if inside(product, rows))
        alike = sorted((s for s in of_range if s.properties == properties), key=lambda schedule: schedule.algorithm)
        predicted = {schedule: value(of_range[schedule], product.shape) for schedule in alike}
        timed = [schedule for schedule in alike if schedule in product.times]
        if timed:
            preferred, chosen = min(alike, key=predicted.get), min(timed, key=predicted.get)
            fastest = min(product.times, key=product.times.get)
            untimed = None if preferred in product.times else preferred
            found.append(Outcome(product, chosen, fastest, untimed))
    return found


def held_out(products: Sequence[Product]) -> Iterable[str]:
    """How costs that were fitted to all other models choose for each."""
    for model in dict.fromkeys(product.model for product in products):
        others = [product for product in products if product.model != model]
        outcomes = choices(fit(others), [product for product in products if product.model == model])
        if outcomes:
            yield summary(f"{model}, fitted to the others", outcomes)


def tables(costs: Costs) -> Iterable[str]:
    """The rules as the profile has them, for each set of properties and range of rows."""
    groups: dict[tuple, dict[str, str]] = defaultdict(dict)
    for rows, of_range in costs.items():
        for schedule, cost in of_range.items():
            groups[schedule.contract, schedule.properties, rows][schedule.algorithm] = cost
    for (contract, properties, (first, last)), of_algorithm in sorted(groups.items()):
        yield "[[select]]"
        yield f'contract = "{contract}"'
        yield f"properties = {{ {', '.join(f'{name} = {json.dumps(wanted)}' for name, wanted in properties)} }}"
        yield f"when = {{ m = [{first}, {last}] }}"
        yield "[select.costs]"
        yield from (f'{algorithm} = "{of_algorithm[algorithm]}"' for algorithm in sorted(of_algorithm))
        yield ""


def report(what: str, outcomes: Sequence[Outcome]) -> Iterable[str]:
    """Regret: all in all, for each projection, and of the worst."""
    yield summary(what, outcomes)
    for name in sorted({outcome.product.what for outcome in outcomes}):
        yield summary(f"  {name}", [outcome for outcome in outcomes if outcome.product.what == name])
    for outcome in sorted(outcomes, key=lambda outcome: -outcome.regret)[:WORST]:
        product, ours, best = outcome.product, outcome.chosen, outcome.fastest
        yield (
            f"# {outcome.regret:.3f} {product.what} m={product.shape['m']}: {ours.name} "
            f"{product.times[ours] / 1e3:.1f} us, {best.algorithm} {product.times[best] / 1e3:.1f} us"
        )
    for outcome in (outcome for outcome in outcomes if outcome.untimed):
        product, other = outcome.product, outcome.untimed
        yield f"# {product.what} m={product.shape['m']}: {other.name} would serve and was not timed"


def summary(what: str, outcomes: Sequence[Outcome]) -> str:
    """One line of regret."""
    regrets = [outcome.regret for outcome in outcomes]
    mean, worst = statistics.fmean(regrets), max(regrets)
    untimed = sum(outcome.untimed is not None for outcome in outcomes)
    elsewhere = f", for {untimed} of them a schedule not timed there would serve" if untimed else ""
    return f"# {what}: regret {mean:.3f} in the mean, {worst:.3f} at worst, of {len(regrets)} products{elsewhere}"


if __name__ == "__main__":
    sys.exit(main())
