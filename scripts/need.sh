#!/usr/bin/env bash
# Usage: need.sh NAME...   (cargo, cc, chromium, curl, nginx, npm, python3, pip, venv)
# Names every missing prerequisite with the command that installs it, and fails if there is one.
set -euo pipefail

# The command that installs the packages named, with this system's package manager: Debian's name, Fedora's, Homebrew's.
install_command() {
    if command -v apt-get >/dev/null; then
        echo "sudo apt-get install -y $1"
    elif command -v dnf >/dev/null; then
        echo "sudo dnf install -y $2"
    elif command -v brew >/dev/null; then
        echo "brew install $3"
    else
        echo "your package manager: $2"
    fi
}

missing=0
report() {
    missing=1
    echo "missing: $1" >&2
    echo "    install it with: $2" >&2
}

for name in "$@"; do
    case "$name" in
        cargo)
            command -v cargo >/dev/null || report "cargo (Rust $(sed -n 's/^channel = "\(.*\)"/\1/p' "$(dirname "$0")/../rust-toolchain.toml"))" \
                "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" ;;
        cc)
            command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null ||
                report "a C compiler" "$(install_command build-essential "gcc make" llvm)" ;;
        chromium)
            command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null ||
                report "chromium" "$(install_command chromium chromium "--cask chromium")" ;;
        curl)
            command -v curl >/dev/null || report "curl" "$(install_command curl curl curl)" ;;
        nginx)
            # Debian installs it where only root's path leads.
            PATH=$PATH:/usr/sbin command -v nginx >/dev/null || report "nginx" "$(install_command nginx-light nginx nginx)" ;;
        npm)
            command -v npm >/dev/null || report "npm" "$(install_command npm npm node)" ;;
        python3)
            command -v python3 >/dev/null || report "python3" "$(install_command python3 python3 python)" ;;
        pip)
            # Without python3 the line above has said what is missing.
            ! command -v python3 >/dev/null || python3 -m pip --version >/dev/null 2>&1 ||
                report "pip" "$(install_command python3-pip python3-pip python)" ;;
        venv)
            ! command -v python3 >/dev/null || python3 -c "import venv, ensurepip" 2>/dev/null ||
                report "Python's venv" "$(install_command python3-venv python3 python)" ;;
        *)
            echo "need.sh: unknown prerequisite $name" >&2
            exit 2 ;;
    esac
done
exit "$missing"
