"""`python -m oxide_tile`: makes the artifacts of a profile."""

import argparse
import os
from pathlib import Path

from oxide_tile import build, sources

REPOSITORY = sources.ROOT.parent.parent


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(prog="oxide_tile", description=__doc__)
    parser.add_argument("--profile", default="sm_90a", help="profiles/NAME.toml")
    parser.add_argument("--output", type=Path, help="default: the CUDA crate's artifacts/PROFILE")
    parser.add_argument("--cache", type=Path, default=sources.ROOT / ".build", help="compiled cubins by content")
    parser.add_argument("--only", default="", help="build the artifacts whose name contains this, leave the index")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="build this many at a time")
    options = parser.parse_args()
    output = options.output or REPOSITORY / "crates/oxide-infer-cuda/artifacts" / options.profile
    request = build.Request(options.profile, output, options.cache, options.only, options.workers)
    build.build(request, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
