"""Profiles and schedules: what is built, with which tile sizes, and which of several schedules serves a shape."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxide_tile.costs import Choice, Cost, CostError
from oxide_tile.definition import UNLIMITED, Domain

Value = str | int | bool


class ProfileError(ValueError):
    """A profile or schedule file that says something unknown or contradictory."""


@dataclass(frozen=True)
class Job:
    """One artifact to build."""

    name: str
    family: str
    kernel: str
    algorithm: str
    variant: Mapping[str, Value]
    schedule: Mapping[str, Value]
    domain: Mapping[str, Domain]


@dataclass(frozen=True)
class Rule:
    """Which algorithm serves shapes that several artifacts admit."""

    contract: str
    properties: Mapping[str, Value]
    when: Mapping[str, tuple[int, int]]
    choice: Choice

    def is_of(self, contract: str, properties: Mapping[str, object]) -> bool:
        """Whether the rule is for some request with these properties, or for some artifact that has them."""
        wanted = self.properties.items()
        return self.contract == contract and all(properties.get(name) == value for name, value in wanted)


@dataclass(frozen=True)
class Profile:
    """A profile file."""

    architecture: str
    jobs: tuple[Job, ...]
    rules: tuple[Rule, ...]


def load(root: Path, name: str) -> Profile:
    """Read `profiles/NAME.toml` and the schedule files that it uses, under `root`."""
    table = Table(read(root / "profiles" / f"{name}.toml"), f"profile {name}")
    jobs = [job for build in table.take("build", []) for job in jobs_of(Table(build, f"profile {name}, build"), root)]
    rules = [rule for choice in table.take("select", []) for rule in rules_of(Table(choice, f"profile {name}, select"))]
    profile = Profile(table.take("architecture"), tuple(jobs), tuple(rules))
    table.finish()
    names = [job.name for job in jobs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ProfileError(f"profile {name} builds {', '.join(twice)} twice")
    return profile


def jobs_of(build: "Table", root: Path) -> list[Job]:
    """Every variant with every schedule of one `[[build]]` table."""
    family, kernel = build.take("family"), build.take("kernel")
    variants = build.take("variants", [{}])
    names = build.take("schedules")
    domain = {dimension: Domain(**limits) for dimension, limits in build.take("domain", {}).items()}
    build.finish()
    schedules = read(root / "schedules" / f"{family}.toml").get(kernel, {})
    unknown = sorted(set(names) - set(schedules))
    if unknown:
        raise ProfileError(f"schedules/{family}.toml has no [{kernel}.{unknown[0]}]")
    return [
        Job(
            name=".".join((kernel, *(str(v) for v in variant.values()), algorithm)),
            family=family,
            kernel=kernel,
            algorithm=algorithm,
            variant=variant,
            schedule=schedules[algorithm],
            domain=domain,
        )
        for variant in variants
        for algorithm in names
    ]


def rules_of(choice: "Table") -> list[Rule]:
    """One `[[select]]` table: `costs`, or for growing values of dimension `by` the algorithm up to each of `steps`."""
    contract, properties = choice.take("contract"), choice.take("properties", {})
    when = {dimension: (low, high) for dimension, (low, high) in choice.take("when", {}).items()}
    costs = choice.take("costs", None)
    if costs is not None:
        choice.finish()
        return [Rule(contract, properties, when, choice_by_cost(costs, choice.where))]
    by, steps = choice.take("by"), choice.take("steps")
    choice.finish()
    rules, low = [], 1
    for high, algorithm in steps:
        last = UNLIMITED if high == "any" else high
        rules.append(Rule(contract, properties, {**when, by: (low, last)}, Choice(algorithm)))
        low = last + 1
    return rules


def choice_by_cost(costs: Mapping[str, Any], where: str) -> Choice:
    """The cheapest of some algorithms, each with its expression."""
    if not isinstance(costs, Mapping) or not costs:
        raise ProfileError(f"{where}: costs must be a table of algorithms")
    read = {}
    for algorithm, text in costs.items():
        if not isinstance(text, str):
            raise ProfileError(f"{where}: the cost of {algorithm} must be an expression in a string, got {text!r}")
        try:
            read[algorithm] = Cost.parse(text)
        except CostError as error:
            raise ProfileError(f"{where}: the cost of {algorithm}: {error}") from error
    return Choice(costs=read)


def read(path: Path) -> dict[str, Any]:
    """A TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ProfileError(f"{path}: {error}") from error


class Table:
    """A TOML table of which every key must be used."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = dict(values)
        self.where = where

    def take(self, key: str, *default: Any) -> Any:
        """Remove and return a key; without a default it must be there."""
        if key not in self.values and not default:
            raise ProfileError(f"{self.where}: {key} is missing")
        return self.values.pop(key, *default)

    def finish(self) -> None:
        """Refuse the keys that nobody took."""
        if self.values:
            raise ProfileError(f"{self.where}: unknown key {sorted(self.values)[0]}")
