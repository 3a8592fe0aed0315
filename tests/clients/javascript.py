"""Runs JavaScript with the packages that `scripts/npm.sh` has installed."""

import os
import shutil
import subprocess
from pathlib import Path

from serving import Server, needed

MODULES = Path(os.environ.get("OXIDE_INFER_NODE_MODULES", "node_modules"))


def let_import_packages(folder: Path) -> None:
    """Lets the JavaScript files of a folder import the packages."""
    (folder / "node_modules").symlink_to(needed(MODULES, "scripts/npm.sh tests/clients/node"))


def node(folder: Path, *arguments: str, server: Server) -> subprocess.CompletedProcess[str]:
    """Runs node in a folder."""
    found = shutil.which("node")
    assert found, "node is missing: `scripts/need.sh npm` says how to install it"
    return subprocess.run(
        [found, *arguments],
        cwd=folder,
        env=os.environ | {"OXIDE_INFER_URL": server.url},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
