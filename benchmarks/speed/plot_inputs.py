"""What the plots are drawn from, as a hash that each plot carries: to check it needs no matplotlib."""

import hashlib
import pathlib

import records

HERE = pathlib.Path(__file__).parent
PLOTS = records.ROOT / "docs/plots"
NAMES = ("serving-light.svg", "serving-dark.svg")


def digest() -> str:
    """Over the bytes of the records, of the script that draws and of the versions that it draws with."""
    whole = hashlib.sha256()
    for path in (records.newest(), records.VLLM, HERE / "plot.py", HERE / "requirements.txt"):
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def comment() -> str:
    return f"<!-- drawn by benchmarks/speed/plot.py, inputs {digest()} -->"


def stale() -> list[str]:
    """Why each plot is not of the present inputs."""
    reasons = []
    for name in NAMES:
        path = PLOTS / name
        if not path.is_file():
            reasons.append(f"{path.relative_to(records.ROOT)} is missing")
        elif comment() not in path.read_text():
            reasons.append(f"{path.relative_to(records.ROOT)} was drawn from other records or by another script")
    return reasons
