#!/usr/bin/env bash
# Usage: reproduce.sh [NAME...]
# Rebuilds artifacts from scratch, in a copy of the sources in another folder and with no cache, and compares every byte of
# manifest and machine code with the committed ones. By default two artifacts of different families.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
committed=$here/../../crates/oxide-infer-cuda/artifacts/sm_90a
[ $# -gt 0 ] || set -- rms_norm.bf16.up_to_256 dense_small.bf16.bf16.none.m8_64x128_s6
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/copy of the sources"
cp -r "$here"/{oxide_tile,profiles,schedules,requirements.lock} "$scratch/copy of the sources"
for name in "$@"; do
  (cd "$scratch" && PYTHONPATH="$scratch/copy of the sources" PYTHONDONTWRITEBYTECODE=1 "$here/.venv/bin/python" -m oxide_tile \
    --output "$scratch/artifacts" --cache "$scratch/cache" --only "$name")
done
count=0
for file in "$scratch"/artifacts/*; do
  cmp "$file" "$committed/$(basename "$file")"
  count=$((count + 1))
done
[ "$count" -ge $((2 * $#)) ] || { echo "only $count files were rebuilt for $# names" >&2; exit 1; }
echo "$count files are the committed ones, byte for byte"
