#!/usr/bin/env bash
# Usage: benchmarks/speed/plot.sh
# Draws docs/plots/*.svg from the newest speed record with the versions in requirements.txt (in .venv).
set -euo pipefail
cd "$(dirname "$0")/../.."

scripts/need.sh python3 pip venv
venv=$(scripts/venv.sh speed benchmarks/speed/requirements.txt)
"$venv/bin/python" benchmarks/speed/plot.py
