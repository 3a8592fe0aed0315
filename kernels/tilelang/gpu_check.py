#!/usr/bin/env python3
"""Check and time the committed artifacts on this machine's GPU; see `device_check`.

    python3 kernels/tilelang/gpu_check.py --json record.json

`--dry-run` stops after what needs neither GPU nor PyTorch.
"""

import argparse
import sys
from pathlib import Path

# As `timing.WHAT`, which needs PyTorch.
WHAT = ("products", "prefills", "decodes", "small", "samples", "adopted", "layers")
ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from device_check import artifact, shapes  # noqa: E402


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--artifacts", type=Path, default=ROOT.parent.parent / "crates/oxide-infer-cuda/artifacts/sm_90a"
    )
    parser.add_argument("--only", default="", help="artifacts whose name contains this")
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"), help="where the record goes")
    parser.add_argument("--budget", type=float, default=450.0, help="seconds; timing stops when they are spent")
    parser.add_argument("--dry-run", action="store_true", help="resolve every launch, run none")
    parser.add_argument("--revision", help="source revision, where the files are not in git")
    parser.add_argument("--skip-timing", action="store_true", help="only check")
    parser.add_argument("--skip-checks", action="store_true", help="only time")
    parser.add_argument("--time", action="append", choices=WHAT, help="time only this (repeatable)")
    parser.add_argument("--heartbeat", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--skip", action="append", default=[], help="leave an artifact out (repeatable)")
    options = parser.parse_args()
    found = [a for a in artifact.load_all(options.artifacts, options.only) if a.name not in options.skip]
    if options.dry_run:
        print(f"{len(found)} artifacts, {shapes.dry_run(found)} shapes: every launch resolves")
        return 0
    if options.heartbeat is None:
        from device_check import supervisor

        return supervisor.supervise(options)
    from device_check import session

    return session.run(found, options)


if __name__ == "__main__":
    sys.exit(main())
