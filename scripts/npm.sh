#!/usr/bin/env bash
# Usage: npm.sh FOLDER   prints the path of a node_modules under .venv/ with what the folder's package-lock.json names;
# makes it first if need be. There is one for each lock file, so a change of the file makes another.
set -euo pipefail
cd "$(dirname "$0")/.."

place=.venv/node-$(cat "$1/package.json" "$1/package-lock.json" | sha256sum | cut -c1-12)
# A half-made installation has no stamp.
if [ ! -e "$place/complete" ]; then
    rm -rf "$place"
    mkdir -p "$place"
    cp "$1/package.json" "$1/package-lock.json" "$place"
    npm ci --prefix "$place" --ignore-scripts --no-audit --no-fund --loglevel=error >&2
    touch "$place/complete"
fi
echo "$place/node_modules"
