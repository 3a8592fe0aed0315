#!/usr/bin/env bash
# Usage: test.sh MODEL
# Runs every test that needs no GPU and ends with one line of totals: Rust tests and doc tests, the Python and
# JavaScript clients and the page in a browser (tests/clients) against the built server, and the tests of what the
# benchmarks compute.
set -euo pipefail

OXIDE_INFER_TEST_MODEL=$(realpath "$1")
export OXIDE_INFER_TEST_MODEL
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
status=0

echo "== Rust tests"
cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$logs/cargo" || status=1

echo "== Clients"
cargo build --locked --package oxide-infer-cli
OXIDE_INFER_BINARY=$(realpath "${CARGO_TARGET_DIR:-target}/debug/oxide-infer")
export OXIDE_INFER_BINARY
venv=$(scripts/venv.sh clients tests/clients/requirements.txt)
OXIDE_INFER_ROUTER=$(realpath "$(scripts/venv.sh router tests/clients/router.txt)/bin/vllm-router")
export OXIDE_INFER_ROUTER
OXIDE_INFER_NODE_MODULES=$(realpath "$(scripts/npm.sh tests/clients/node)")
export OXIDE_INFER_NODE_MODULES
instructor=$(scripts/venv.sh instructor tests/clients/instructor.txt)
OXIDE_INFER_INSTRUCTOR=$PWD/$instructor/bin/python
export OXIDE_INFER_INSTRUCTOR
"$venv/bin/pytest" tests/clients 2>&1 | tee "$logs/pytest" || status=1
"$instructor/bin/pytest" tests/clients/test_instructor.py 2>&1 | tee -a "$logs/pytest" || status=1

echo "== The benchmarks' own arithmetic"
"$venv/bin/pytest" benchmarks/parity benchmarks/kernels benchmarks/speed benchmarks/operators 2>&1 | tee -a "$logs/pytest" || status=1

sum() { # FILE WORD: adds up the numbers before WORD in the runners' closing lines
    # A runner leaves out what it had none of, and grep then finds nothing.
    { grep -hE '^test result:|^=+ .* in [0-9.]+s' "$1" | grep -oE "[0-9]+ $2" || true; } |
        awk '{n += $1} END {print n + 0}'
}
passed=$(($(sum "$logs/cargo" passed) + $(sum "$logs/pytest" passed)))
failed=$(($(sum "$logs/cargo" failed) + $(sum "$logs/pytest" failed) + $(sum "$logs/pytest" error)))
skipped=$(($(sum "$logs/cargo" ignored) + $(sum "$logs/pytest" skipped)))
echo "$passed passed, $failed failed, $skipped skipped"
exit "$status"
