#!/usr/bin/env bash
# Usage: reproduce.sh
# Compiles a copy of the sources in another folder, and compares every byte of what comes of it with the committed artifacts.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/copy of the sources"
cp -r "$here"/{oxide_native,src,requirements.lock,toolchain.lock} "$scratch/copy of the sources"
ln -s "$here/.toolchain" "$scratch/copy of the sources/.toolchain"
PYTHONPATH="$scratch/copy of the sources:$here/../tilelang" PYTHONDONTWRITEBYTECODE=1 \
  "$here/.venv/bin/python" -m oxide_native artifacts --output "$scratch/artifacts" > "$scratch/log"
diff -r "$scratch/artifacts" "$here/../../crates/oxide-infer-cuda/artifacts/sm_90a_native"
echo "$(find "$scratch/artifacts" -type f | wc -l) files are the committed ones, byte for byte"
