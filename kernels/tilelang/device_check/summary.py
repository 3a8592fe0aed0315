"""The end of a timing run in a few lines: what the plan chooses beside the fastest schedule and the floor."""

from collections.abc import Mapping
from typing import Any

from device_check.artifact import Artifact, Selection
from device_check.floors import largest

# What the engine's plan takes for one long sequence: one block a multiprocessor, no more splits than these, and no
# second launch where so many splits do or there are so few pages.
MOST_SPLITS = 32
SPLITS_IN_ONE_LAUNCH = 8
PAGES_IN_ONE_LAUNCH = 64
# A choice that costs less than this is as good as the fastest: two runs of one kernel differ by as much.
NOISE = 1.03


def chosen(
    row: Mapping[str, Any], artifacts: Mapping[str, Artifact], selection: Selection, multiprocessors: int
) -> str | None:
    """The name, among a row's times, of what a plan would run."""
    first = artifacts.get(next(iter(row["ours"]), "").split(" ")[0])
    if first is None:
        return None
    if row["what"] == "decode":
        return decode_choice(row, artifacts, selection, multiprocessors)
    if len(row["ours"]) == 1:
        return first.name
    algorithm = selection.algorithm(first, row)
    return next((name for name in row["ours"] if artifacts[name].manifest["algorithm"] == algorithm), None)


def decode_choice(
    row: Mapping[str, Any], artifacts: Mapping[str, Artifact], selection: Selection, multiprocessors: int
) -> str | None:
    """As `Requests::splits` of the engine has it, or the nearest number of splits that was timed."""
    shape = row["dimensions"]
    wanted = min(multiprocessors // shape["num_kv_heads"], MOST_SPLITS)
    timed = {name: artifacts[name.split(" ")[0]] for name in row["ours"]}
    if shape["batch"] == 1 and shape["max_pages"] > PAGES_IN_ONE_LAUNCH and wanted > SPLITS_IN_ONE_LAUNCH:
        splits = {
            name: int(name.rpartition("=")[2])
            for name, artifact in timed.items()
            if "splits" in artifact.manifest["dimensions"]
        }
        return min(splits, key=lambda name: abs(splits[name] - wanted), default=None)
    in_one_launch = {
        artifact.manifest["algorithm"]: name
        for name, artifact in timed.items()
        if "splits" not in artifact.manifest["dimensions"]
    }
    first = next(iter(in_one_launch.values()), None)
    return first and in_one_launch.get(selection.algorithm(timed[first], shape))


def lines(
    rows: list[dict[str, Any]], artifacts: Mapping[str, Artifact], selection: Selection, multiprocessors: int
) -> list[str]:
    """One line for each timing with a floor: rows that a better choice would speed up are marked."""
    found = []
    for row in rows:
        if "floor" not in row or not row["ours"]:
            continue
        times = {name: sample["median"] for name, sample in row["ours"].items()}
        best = min(times, key=times.get)
        choice = row["chosen"] = chosen(row, artifacts, selection, multiprocessors)
        shape = " ".join(str(row[k]) for k in ("model", "projection", "batch", "kv_len", "m", "rows") if k in row)
        now = times.get(choice)
        cost = f"{now / times[best]:5.2f}" if now else "    ?"
        mark = "*" if now is None or now > NOISE * times[best] else " "
        floor = largest(row["floor"])
        found.append(
            f"{mark} {row['what']} {shape}: floor {floor:.1f} best {times[best]:.1f} {short(best)} "
            f"chosen {cost} x {short(choice)}"
        )
    return found


def short(name: str | None) -> str:
    """A schedule without what its siblings share."""
    return name.split(".", 3)[-1] if name else "-"
