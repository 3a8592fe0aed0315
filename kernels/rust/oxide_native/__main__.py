"""`python -m oxide_native`: compiles the core library once (`core`), or makes all artifacts."""

import argparse
import os
from pathlib import Path

from oxide_native import build, toolchain

REPOSITORY = toolchain.ROOT.parent.parent
OUTPUT = REPOSITORY / "crates/oxide-infer-cuda/artifacts/sm_90a_native"


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(prog="oxide_native", description=__doc__)
    parser.add_argument("what", choices=["core", "artifacts"])
    parser.add_argument("--output", type=Path, default=OUTPUT, help="default: the CUDA crate's artifacts/sm_90a_native")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="compile this many at a time")
    options = parser.parse_args()
    if options.what == "core":
        toolchain.build_core()
    else:
        build.build(options.output, options.workers, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
