"""Reads speed records: the newest of docs/evidence, vLLM's rows, the targets, and the CPU's record beside llama.cpp."""

import dataclasses
import json
import pathlib
import statistics

ROOT = pathlib.Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "docs/evidence"
VLLM = EVIDENCE / "2026-11-29-h200-vllm.json"
TARGETS = pathlib.Path(__file__).with_name("targets.json")
CPU = ROOT / "benchmarks/engines/record.json"
# Of runs for which the engine was told nothing.
OWN_SETTING = {"max_batch_tokens": None}


def newest() -> pathlib.Path:
    """The record of the latest date, which its name begins with."""
    return max(EVIDENCE.glob("*-h200-speed.json"))


def load(path: pathlib.Path) -> dict:
    record = json.loads(path.read_text())
    memory = record.get("server_memory_after")
    if memory:
        # `VmRSS: "401384 kB"`, in units of 1,024 bytes as /proc/PID/status has them.
        record["server_resident_gb"] = int(memory["VmRSS"].split()[0]) * 1024 / 1e9
    return record


def ours(target: dict) -> dict | None:
    """What picks the entries of a target in a record of this engine."""
    if target.get("section") != "runs":
        return target.get("where")
    return target["where"] | target.get("setting", OWN_SETTING)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A median, and the least and greatest of the measurements where there were several."""

    median: float
    least: float | None = None
    greatest: float | None = None


def find(record: dict, metric: str, section: str | None = None, where: dict | None = None) -> Measured | None:
    """The value at the dotted path `metric`: of the record itself, or over the entries of `section` that have what
    `where` says. A model is named by how its name begins; of a comparison of two servers the first one's turns count.
    """
    entries = [record] if section is None else [e for e in record[section] if _matches(e, where or {})]
    values = [value for value in (_at(entry, metric) for entry in entries) if value is not None]
    if not values:
        return None
    if len(values) == 1 and isinstance(values[0], dict):
        return Measured(values[0]["p50"], values[0]["min"], values[0]["max"])
    if len(values) == 1:
        return Measured(values[0])
    values = [value["p50"] if isinstance(value, dict) else value for value in values]
    return Measured(statistics.median(values), min(values), max(values))


def _matches(entry: dict, where: dict) -> bool:
    same = all(
        str(entry.get(key)).startswith(value) if key == "model" else entry.get(key) == value
        for key, value in where.items()
    )
    return same and entry.get("server", "url") == "url"


def _at(entry: dict, path: str) -> float | dict | None:
    value = entry
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
