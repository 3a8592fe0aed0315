#!/usr/bin/env bash
# Usage: venv.sh NAME REQUIREMENTS   prints the path of a virtual environment under .venv/ with these requirements; makes
# it first if need be. There is one for each set of requirements, so a change of the file makes another.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv/$1-$(sha256sum "$2" | cut -c1-12)
# A half-made environment has no stamp.
if [ ! -e "$venv/complete" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv" >&2
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$2" >&2
    touch "$venv/complete"
fi
echo "$venv"
