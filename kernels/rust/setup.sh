#!/usr/bin/env bash
# Usage: setup.sh
# Brings what toolchain.lock and requirements.lock name into .toolchain and .venv beside this file, and compiles the core library
# for the device. Needs Debian 12's apt (nothing is installed system-wide, 1 GB of disk), Python 3.11 and the network, once.
set -euo pipefail
cd "$(dirname "$0")"
tools=$PWD/.toolchain
# Packages of before, or half of them, would do harm.
rm -rf "$tools"
mkdir -p "$tools/packages" "$tools/root" "$tools/core"

while read -r name version hash; do
  [[ $name != \#* ]] || continue
  (cd "$tools/packages" && apt-get download -qq "$name=$version") || {
    echo "apt-get cannot download $name $version: it is of bookworm-security, and 'apt-get update' may be due" >&2
    exit 1
  }
  file=$(find "$tools/packages" -name "${name}_*.deb")
  echo "$hash  $file" | sha256sum --check --quiet
  dpkg -x "$file" "$tools/root"
done < toolchain.lock
rm -r "$tools/packages"

[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock

PYTHONPATH=.:../tilelang PYTHONDONTWRITEBYTECODE=1 .venv/bin/python -m oxide_native core
touch "$tools/stamp"
