#!/usr/bin/env python3
"""Time committed artifacts beside twins whose dimensions are fixed (`static_twins.py`): what symbolic dimensions cost.

    python3 kernels/tilelang/twin_check.py --twins kernels/tilelang/.build/twins --json record.json

Both are timed in one run, in turns that begin with either, with operands rotated past the L2 cache. A pair's ratio is
the median over turns of symbolic over static; over 1: the symbolic kernel is slower. `--dry-run` needs neither GPU nor
PyTorch.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from device_check import twins  # noqa: E402


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--artifacts", type=Path, default=ROOT.parent.parent / "crates/oxide-infer-cuda/artifacts/sm_90a"
    )
    parser.add_argument("--twins", type=Path, default=ROOT / ".build/twins")
    parser.add_argument("--json", type=Path, default=Path("twin_check.json"), help="where the record goes")
    parser.add_argument("--revision", help="source revision, where the files are not in git")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds; no pair begins after them")
    parser.add_argument("--dry-run", action="store_true", help="resolve every launch, run none")
    options = parser.parse_args()
    pairs = twins.pairs(options.artifacts, options.twins)
    if options.dry_run:
        for pair in pairs:
            pair.symbolic.check(pair.shape)
            pair.static.check(pair.shape)
        print(f"{len(pairs)} pairs: every launch resolves")
        return 0
    from device_check import twin_times

    record = twin_times.run(pairs, options.revision, options.budget)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(record, indent=1) + "\n")
    twin_times.print_table(record)
    return 0 if not record["not_begun"] else 1


if __name__ == "__main__":
    sys.exit(main())
