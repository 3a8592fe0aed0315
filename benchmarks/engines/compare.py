"""Runs Oxide Infer and llama.cpp side by side on one GGUF file and prints speed and memory of both.

Usage: compare.py --binary OXIDE_INFER --model FILE.gguf [--threads N] [--record DIRECTORY]

Each engine is started alone, in the order oxide, llama, llama, oxide, with the same file and number of
threads, and asked over HTTP (/v1/completions, greedy, end-of-sequence ignored). Prompts are token ids drawn
anew for every request, so that no prefix is ever reused:

- prefill: 512 prompt tokens, 1 new token; 512 / seconds
- decode: 16 prompt tokens, 129 new tokens, less the time of the same with 1 new token; 128 / seconds
- memory: the process's greatest resident set (VmHWM), mapped pages of the model file counted
"""

import argparse
import datetime
import http.client
import json
import os
import pathlib
import platform
import random
import re
import socket
import statistics
import subprocess
import sys
import time

PREFILL = 512
DECODE = 128
CONTEXT = 2048
KV_MEMORY = "128MiB"
REPEATS = 7
ORDER = ["oxide-infer", "llama.cpp", "llama.cpp", "oxide-infer"]
# SmolLM2 and most others: ordinary tokens, past the special ones.
TOKENS = range(1000, 40000)
# What has to hold: ratios to llama.cpp, and to the model file and the KV pool together.
LEAST_PREFILL = 2.0
LEAST_DECODE = 0.8
MOST_MEMORY = 1.5


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Engine:
    """One engine in a process of its own."""

    def __init__(self, name: str, arguments: argparse.Namespace):
        self.name = name
        self.port = free_port()
        here = pathlib.Path(__file__).parent
        if name == "oxide-infer":
            command = [arguments.binary, "serve", "--model", arguments.model, "--device", "cpu"]
            command += ["--threads", str(arguments.threads), "--max-model-len", str(CONTEXT)]
            command += ["--kv-memory", KV_MEMORY, "--port", str(self.port)]
        else:
            command = [sys.executable, str(here / "llama_server.py"), arguments.model]
            command += [str(arguments.threads), str(CONTEXT), str(self.port)]
        self.command = command
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> "Engine":
        try:
            self.wait_until_ready()
        except BaseException:
            self.process.kill()
            raise
        return self

    def wait_until_ready(self) -> None:
        path = "/ready" if self.name == "oxide-infer" else "/health"
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise SystemExit(f"{self.name} ended with code {self.process.returncode} before it was ready")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", path)
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise SystemExit(f"{self.name} was not ready within 120 s")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)

    def seconds(self, prompt_tokens: int, new_tokens: int, rng: random.Random) -> float:
        """The time of one request."""
        body = {
            "prompt": rng.choices(TOKENS, k=prompt_tokens),
            "max_tokens": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        start = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        elapsed = time.perf_counter() - start
        if response.status != 200:
            text = answer.decode(errors="replace")[:500]
            raise SystemExit(f"{self.name} answered {response.status}: {text}")
        usage = json.loads(answer)["usage"]
        expected = (prompt_tokens, new_tokens)
        if (usage["prompt_tokens"], usage["completion_tokens"]) != expected:
            raise SystemExit(f"{self.name} should have used {expected} tokens, got {usage}")
        return elapsed

    def peak_bytes(self) -> int:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def measure(name: str, arguments: argparse.Namespace, rng: random.Random) -> dict:
    with Engine(name, arguments) as engine:
        engine.seconds(PREFILL, 8, rng)
        prefill, decode = [], []
        for _ in range(REPEATS):
            prefill.append(PREFILL / engine.seconds(PREFILL, 1, rng))
            first = engine.seconds(16, 1, rng)
            decode.append(DECODE / (engine.seconds(16, 1 + DECODE, rng) - first))
        return {
            "engine": name,
            "command": [os.path.basename(part) if "/" in part else part for part in engine.command],
            "prefill_tokens_per_s": prefill,
            "decode_tokens_per_s": decode,
            "peak_resident_bytes": engine.peak_bytes(),
        }


def kv_bytes() -> int:
    return int(KV_MEMORY.removesuffix("MiB")) << 20


def summary(runs: list[dict], model_bytes: int) -> dict:
    """Medians over all passes of an engine, and the ratios that are asked for."""
    engines = {}
    for name in dict.fromkeys(ORDER):
        own = [run for run in runs if run["engine"] == name]
        engines[name] = {"peak_resident_bytes": max(run["peak_resident_bytes"] for run in own)}
        for key in ("prefill_tokens_per_s", "decode_tokens_per_s"):
            values = [value for run in own for value in run[key]]
            engines[name][key] = {
                "median": statistics.median(values),
                "least": min(values),
                "greatest": max(values),
            }
    ours, theirs = engines["oxide-infer"], engines["llama.cpp"]

    def ratio(key: str) -> float:
        return ours[key]["median"] / theirs[key]["median"]

    return {
        "engines": engines,
        "prefill_ratio": ratio("prefill_tokens_per_s"),
        "decode_ratio": ratio("decode_tokens_per_s"),
        "memory_ratio": ours["peak_resident_bytes"] / (model_bytes + kv_bytes()),
    }


def verdict(found: dict) -> list[tuple[str, float, str, bool]]:
    return [
        (
            "prefill, ours / llama.cpp",
            found["prefill_ratio"],
            f"at least {LEAST_PREFILL}",
            found["prefill_ratio"] >= LEAST_PREFILL,
        ),
        (
            "decode, ours / llama.cpp",
            found["decode_ratio"],
            f"at least {LEAST_DECODE}",
            found["decode_ratio"] >= LEAST_DECODE,
        ),
        (
            "peak memory, ours / (model file + KV)",
            found["memory_ratio"],
            f"at most {MOST_MEMORY}",
            found["memory_ratio"] <= MOST_MEMORY,
        ),
    ]


def report(record: dict) -> str:
    """The record as Markdown."""
    found = record["summary"]
    lines = [
        f"# {record['model']} on {record['processor']}, {record['threads']} threads",
        "",
        f"{record['date']}, revision `{record['revision']}`; order of runs: {', '.join(ORDER)};",
        f"{REPEATS} passes each.",
        "Tokens per second: median (least to greatest). Load average before and after: "
        f"{record['load_before']:.2f}, {record['load_after']:.2f}.",
        "",
        f"| engine | prefill {PREFILL} | decode {DECODE} | peak resident set |",
        "|---|---|---|---|",
    ]
    for name, engine in found["engines"].items():
        cells = [
            f"{engine[key]['median']:.1f} ({engine[key]['least']:.1f} to {engine[key]['greatest']:.1f})"
            for key in ("prefill_tokens_per_s", "decode_tokens_per_s")
        ]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {engine['peak_resident_bytes'] / 2**20:.0f} MiB |")
    lines += ["", "| target | found | wanted | |", "|---|---|---|---|"]
    for what, value, wanted, met in verdict(found):
        lines.append(f"| {what} | {value:.2f} | {wanted} | {'met' if met else 'NOT MET'} |")
    return "\n".join(lines) + "\n"


def processor() -> str:
    names = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{names[0] if names else platform.processor()} ({os.cpu_count()} cores)"


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--record", type=pathlib.Path, help="folder that gets record.json and record.md")
    arguments = parser.parse_args()

    rng = random.Random(1)
    load_before = os.getloadavg()[0]
    runs = []
    for name in ORDER:
        print(f"{name} …", file=sys.stderr, flush=True)
        runs.append(measure(name, arguments, rng))
    model_bytes = os.path.getsize(arguments.model)
    revision = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "revision": revision.stdout.strip(),
        "processor": processor(),
        "threads": arguments.threads,
        "model": os.path.basename(arguments.model),
        "model_bytes": model_bytes,
        "kv_bytes": kv_bytes(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "runs": runs,
        "summary": summary(runs, model_bytes),
    }
    text = report(record)
    print(text)
    if arguments.record:
        arguments.record.mkdir(parents=True, exist_ok=True)
        (arguments.record / "record.json").write_text(json.dumps(record, indent=1) + "\n")
        (arguments.record / "record.md").write_text(text)
    if not all(met for *_, met in verdict(record["summary"])):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
