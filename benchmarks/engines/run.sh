#!/usr/bin/env bash
# Usage: benchmarks/engines/run.sh [THREADS]
# Builds the release binary, fetches the demo model and llama.cpp (the Python package xllamacpp, into .venv), runs both side
# by side, prints the comparison and writes it to benchmarks/engines/record.{json,md}. Fails when a target is not met.
set -euo pipefail
cd "$(dirname "$0")/../.."

scripts/need.sh cargo cc python3 pip venv
threads=${1:-$(nproc)}
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
make --no-print-directory build model

venv=$(scripts/venv.sh engines benchmarks/engines/requirements.txt)
"$venv/bin/python" benchmarks/engines/compare.py --binary "${CARGO_TARGET_DIR:-target}/release/oxide-infer" \
    --model "$model" --threads "$threads" --record benchmarks/engines
