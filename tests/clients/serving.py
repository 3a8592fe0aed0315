"""Starts the real server on a free port."""

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx2
from anthropic import Anthropic
from checking import AsyncCheckingTransport, CheckingTransport
from openai import AsyncOpenAI, OpenAI

ROOT = Path(__file__).parents[2]
BINARY = Path(os.environ.get("OXIDE_INFER_BINARY", ROOT / "target/debug/oxide-infer"))
MODEL = Path(os.environ.get("OXIDE_INFER_TEST_MODEL", ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
ROUTER = Path(os.environ.get("OXIDE_INFER_ROUTER", "vllm-router"))
DEVICE = os.environ.get("OXIDE_INFER_TEST_DEVICE", "cpu")
NAME = "smollm2"
# Loading takes seconds, on a busy machine many.
START_TIMEOUT = 120.0


def needed(path: Path, command: str) -> Path:
    assert path.exists(), f"{path} is missing: run `{command}` first"
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server process and clients of it."""

    def __init__(self, log: Path, *options: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self.transport = CheckingTransport()
        self.http = httpx2.Client(base_url=self.url, transport=self.transport, timeout=120)
        command = [needed(BINARY, "cargo build"), "serve", "--model", needed(MODEL, "make model")]
        command += ["--device", DEVICE, "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--served-model-name", NAME, *options]
        with log.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server ended:\n{self.log.read_text()}"
            try:
                if self.http.get("/ready").status_code == 200:
                    return
            except httpx2.TransportError:
                time.sleep(0.1)
        raise AssertionError(f"the server is not ready after {START_TIMEOUT} s:\n{self.log.read_text()}")

    def client(self, api_key: str = "unused", **options: object) -> OpenAI:
        """An OpenAI client that does not retry unless it is told to."""
        options.setdefault("max_retries", 0)
        return OpenAI(base_url=f"{self.url}/v1", api_key=api_key, http_client=self.http, **options)

    def async_client(self, transport: AsyncCheckingTransport) -> AsyncOpenAI:
        """A client for one event loop, which closes the transport when it is closed."""
        http = httpx2.AsyncClient(transport=transport, timeout=120)
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="unused", http_client=http, max_retries=0)

    def anthropic(self, api_key: str = "unused") -> Anthropic:
        """An Anthropic client that does not retry."""
        return Anthropic(base_url=self.url, api_key=api_key, http_client=self.http, max_retries=0)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples over all labels."""
        text = self.http.get("/metrics").text
        samples = re.findall(rf"^oxide_infer_{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        assert samples, f"no metric {name} in\n{text}"
        return sum(map(float, samples))

    def wait_for_metric(self, name: str, value: float, timeout: float = 20.0) -> None:
        deadline = time.monotonic() + timeout
        while (got := self.metric(name)) != value:
            assert time.monotonic() < deadline, f"{name} is still {got}, not {value}"
            time.sleep(0.02)

    def terminate(self, timeout: float = 60.0) -> int:
        """Sends SIGTERM and returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def close(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
