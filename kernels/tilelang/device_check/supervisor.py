"""Runs the checks in a child process, so that a kernel that hangs or breaks the context does not end the run."""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BROKEN_CONTEXT = 77
STARTUP_SECONDS, KERNEL_SECONDS = 120.0, 40.0
ATTEMPTS = 6
STARTUP = "startup"


def supervise(options: argparse.Namespace) -> int:
    """Run the session in a child; when an artifact stops it, start again without that artifact."""
    began, skip = time.monotonic(), list(options.skip)
    heartbeat = Path(tempfile.mkdtemp()) / "heartbeat"
    for _ in range(ATTEMPTS):
        rest = options.budget - (time.monotonic() - began)
        if rest <= 0:
            break
        heartbeat.write_text(STARTUP)
        skips = [part for name in skip for part in ("--skip", name)]
        arguments = [*sys.argv[1:], "--heartbeat", heartbeat, "--budget", rest, *skips]
        status = watch([sys.executable, "-u", sys.argv[0], *map(str, arguments)], heartbeat)
        if status != BROKEN_CONTEXT:
            return status or (1 if skip != options.skip else 0)
        culprit = heartbeat.read_text()
        print(f"FAIL {culprit}: hung or broke the context; starting again without it", flush=True)
        if culprit in (STARTUP, *skip):
            return 1
        skip.append(culprit)
    return 1


def watch(command: list[str], heartbeat: Path) -> int:
    """Wait for a child, ending it when its heartbeat stops."""
    child = subprocess.Popen(command)
    while child.poll() is None:
        time.sleep(0.5)
        limit = STARTUP_SECONDS if heartbeat.read_text() == STARTUP else KERNEL_SECONDS
        if time.time() - heartbeat.stat().st_mtime > limit:
            child.kill()
            child.wait()
            return BROKEN_CONTEXT
    return child.returncode
