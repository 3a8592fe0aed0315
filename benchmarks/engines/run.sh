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

requirements=benchmarks/engines/requirements.txt
# One environment for each set of requirements; a half-made one has no stamp.
venv=.venv/engines-$(sha256sum "$requirements" | cut -c1-12)
if [ ! -e "$venv/complete" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
    touch "$venv/complete"
fi

"$venv/bin/python" benchmarks/engines/compare.py --binary "${CARGO_TARGET_DIR:-target}/release/oxide-infer" \
    --model "$model" --threads "$threads" --record benchmarks/engines
