#!/usr/bin/env bash
# Usage: dist.sh BINARY
# Makes dist/oxide-infer-VERSION-TARGET.tar.gz: the stripped binary, licence, README and shell completions.
set -euo pipefail

binary=$1
version=$("$binary" --version | awk '{print $2}')
target=$(rustc -vV | sed -n 's/^host: //p')
name=oxide-infer-$version-$target
mkdir -p dist
work=$(mktemp -d dist/.work.XXXXXX)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/$name/completions"
cp "$binary" "$work/$name/oxide-infer"
strip "$work/$name/oxide-infer"
cp LICENSE README.md "$work/$name/"
for shell in bash zsh fish; do
    "$work/$name/oxide-infer" completions "$shell" >"$work/$name/completions/oxide-infer.$shell"
done
tar -C "$work" --owner=0 --group=0 --sort=name --mtime=@0 -czf "$work/$name.tar.gz" "$name"
mv "$work/$name.tar.gz" "dist/$name.tar.gz"
(cd dist && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
echo "dist/$name.tar.gz"
