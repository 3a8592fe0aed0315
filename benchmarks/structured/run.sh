#!/usr/bin/env bash
# Usage: benchmarks/structured/run.sh [THREADS]
# Builds the release binary, fetches the demo model, measures what a grammar costs for each token with 1 and 32 streams, prints
# it and writes it to benchmarks/structured/record.{json,md}.
set -euo pipefail
cd "$(dirname "$0")/../.."

scripts/need.sh cargo cc python3 pip
threads=${1:-$(nproc)}
make --no-print-directory build model
python3 benchmarks/structured/measure.py --binary "${CARGO_TARGET_DIR:-target}/release/oxide-infer" \
    --model models/SmolLM2-135M-Instruct.Q4_1.gguf --threads "$threads" --record benchmarks/structured
