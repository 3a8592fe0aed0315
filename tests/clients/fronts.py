"""What stands in front of several servers: nginx with the configuration of deploy/, and vllm-router."""

import getpass
import os
import shutil
import subprocess
import time
from pathlib import Path

import httpx2
from serving import ROOT, ROUTER, free_port

NGINX_CONF = ROOT / "deploy/nginx/nginx.conf"
ROUTER_OPTIONS = [
    "--worker-startup-check-interval=1",
    "--health-check-endpoint=/ready",
    "--health-check-interval-secs=1",
    "--health-failure-threshold=1",
    "--health-success-threshold=1",
    "--cb-success-threshold=1",
    "--cb-timeout-duration-secs=2",
]


def nginx_command(folder: Path, ports: list[int], listen: int) -> list[str]:
    """nginx with the shipped file, but for its addresses and the places where it writes."""
    text = NGINX_CONF.read_text()
    places = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    changes = {"http {": f"http {{ {places}", "listen 8000;": f"listen 127.0.0.1:{listen};"}
    changes |= {f"127.0.0.1:{shipped}": f"127.0.0.1:{port}" for shipped, port in zip((8001, 8002), ports, strict=True)}
    for shipped, ours in changes.items():
        assert text.count(shipped) == 1, f"{NGINX_CONF} has no {shipped}"
        text = text.replace(shipped, ours)
    conf = folder / "nginx.conf"
    conf.write_text(text)
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert nginx, "nginx is missing: scripts/need.sh nginx says how to install it"
    globals_ = f"daemon off; user {getpass.getuser()}; pid {folder}/pid; error_log {folder}/log;"
    return [nginx, "-p", str(folder), "-c", str(conf), "-g", globals_]


class Front:
    """A process that passes requests on."""

    def __init__(self, kind: str, folder: Path, ports: list[int]) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "front.log"
        if kind == "nginx":
            command = nginx_command(folder, ports, port)
        else:
            assert shutil.which(ROUTER), f"{ROUTER} is missing: install tests/clients/router.txt"
            workers = [f"http://127.0.0.1:{worker}" for worker in ports]
            command = [ROUTER, "--worker-urls", *workers, f"--policy={kind}", f"--port={port}", *ROUTER_OPTIONS]
            command += [f"--prometheus-port={free_port()}"]
        with self.log.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self.wait_until_it_answers()

    def wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if httpx2.get(f"{self.url}/v1/models", timeout=5).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"no answer through the front:\n{self.log.read_text()}")

    def close(self) -> None:
        # nginx ends its workers only if it is asked to end.
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
