"""Measures every row of targets.json with `oxide-infer bench`, and the machine's limits beside them, into one record.

Usage: measure.py --binary OXIDE_INFER --model-1.5b DIR [--model-7b DIR] --revision REV --record FILE
                  [--device cuda] [--budgets] [--quick]

A directory with no .safetensors is given `--weights random:1`. Batches are measured in processes of their own; the
server is started once, timed to its first completion where it reads weights, and measured at every concurrency. Limits
are those of `kernels/tilelang/device_check/floors.py`, which needs PyTorch.

--budgets measures, instead of all else, servers whose steps have at most so many tokens, from few to many: what prompts
cost those who wait for their next token. --quick shrinks all work, to try this script where there is no GPU: such a
record says so, and is no evidence of anything.
"""

import argparse
import contextlib
import datetime
import http.client
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import records

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

import artifacts  # noqa: E402

SHAPES = {
    "Qwen2.5-1.5B shape": {"hidden_size": 1536, "num_hidden_layers": 28},
    "Qwen2.5-7B shape": {"hidden_size": 3584, "num_hidden_layers": 28},
}
# Batch, tokens in, tokens out, repetitions, and the most tokens of a step, None for the engine's own: many prompts with
# nobody waiting are read with the setting for throughput.
THROUGHPUT = 8192
BATCHES = {
    "Qwen2.5-1.5B shape": [(1, 128, 128, 5, None), (1, 512, 128, 3, None), (1, 2048, 128, 3, None)]
    + [(1, 4096, 128, 5, None), *((batch, 512, 128, 5, None) for batch in (8, 16, 32, 64, 128, 256))]
    + [(256, 512, 128, 3, THROUGHPUT), (16, 4096, 2, 5, THROUGHPUT)],
    "Qwen2.5-7B shape": [(1, 128, 128, 5, None), (256, 512, 64, 3, THROUGHPUT), (16, 4096, 2, 3, THROUGHPUT)],
}
CONCURRENCIES = [1, 16, 64, 256]
ROUNDS = 3
# Tokens of a step, at one concurrency.
BUDGETS, BUDGET_CONCURRENCY = [512, 1024, 2048, 4096, 8192, 16384], 64
LIMITS = (
    "import json, sys; sys.path.insert(0, 'kernels/tilelang'); from device_check import floors; r = floors.measure(); "
    "print(json.dumps({'GB/s': r.bytes / 1e3, 'TFLOP/s': r.operations / 1e6}))"
)


def main() -> None:
    options = arguments()
    record = header(options)
    models = {"Qwen2.5-1.5B shape": options.small, "Qwen2.5-7B shape": options.large}
    if options.budgets:
        record["budgets"] = [budget(options, tokens) for tokens in (BUDGETS[:2] if options.quick else BUDGETS)]
    else:
        record["runs"] = [
            batch(options, name, path, work)
            for name, path in models.items()
            if path is not None
            for work in work_of(name, options.quick)
        ]
        record |= server(options)
    record["artifacts"] = artifacts.merged(pop_artifacts(record))
    options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {options.record}")


def header(options: argparse.Namespace) -> dict:
    """What was run, of what, and on what."""
    record = {
        "kind": "oxide-infer bench" + (", quick: the work was shrunk" if options.quick else ""),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "revision": options.revision,
        "command": sys.argv,
        "device": options.device,
    }
    if options.device == "cpu":
        return record
    device, driver = said(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).split(", ")[:2]
    limits = json.loads(said([sys.executable, "-c", LIMITS]))
    return record | {"device": device, "driver": driver.strip(), "limits": limits}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model-1.5b", dest="small", type=pathlib.Path, required=True)
    parser.add_argument("--model-7b", dest="large", type=pathlib.Path)
    parser.add_argument("--revision", required=True)
    parser.add_argument("--record", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budgets", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if not options.quick:
        for name, path in (("Qwen2.5-1.5B shape", options.small), ("Qwen2.5-7B shape", options.large)):
            if path is not None:
                check_shape(name, path)
    return options


def check_shape(name: str, path: pathlib.Path) -> None:
    config = json.loads((path / "config.json").read_text())
    for key, wanted in SHAPES[name].items():
        if config.get(key) != wanted:
            raise SystemExit(f"{path} is not of {name}: {key} is {config.get(key)}; it must be {wanted}")


def work_of(name: str, quick: bool) -> list[tuple[int, int, int, int, int | None]]:
    if not quick:
        return BATCHES[name]
    return [(min(batch, 2), inputs // 16, min(outputs, 8), 1, None) for batch, inputs, outputs, *_ in BATCHES[name][:2]]


def weights(path: pathlib.Path) -> list[str]:
    read = path.is_file() or any(path.glob("*.safetensors"))
    return [] if read else ["--weights", "random:1"]


def batch(options: argparse.Namespace, name: str, path: pathlib.Path, work: tuple) -> dict:
    size, inputs, outputs, repeat, tokens = work
    command = ["--model", path, *weights(path), "--device", options.device, "--batch", size]
    command += ["--input-len", inputs, "--output-len", outputs, "--repeat", repeat]
    command += [] if tokens is None else ["--max-batch-tokens", tokens]
    named = {"model": ", ".join([name, *[" ".join(weights(path))] * bool(weights(path))])}
    return bench(options, command) | named | {"max_batch_tokens": tokens}


def bench(options: argparse.Namespace, command: list) -> dict:
    """What `oxide-infer bench` wrote; ends this script if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "result.json"
        words = [str(word) for word in [options.binary, "bench", *command, "--json", path]]
        print("$", " ".join(words), flush=True)
        subprocess.run(words, check=True)
        return json.loads(path.read_text())


def pop_artifacts(record: dict) -> list[dict | None]:
    """What each run and the server computed with, which then stands in the record once."""
    runs = [record, *record.get("runs", []), *record.get("budgets", [])]
    return [run.pop("artifacts", None) for run in runs]


def server(options: argparse.Namespace) -> dict:
    """Rows of the server, its memory after them, and the time from its start to the first completion."""
    with running(options, []) as (process, port, started):
        result = load(options, port, [1, 2] if options.quick else CONCURRENCIES)
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    memory = {key: lines[key].strip() for key in ("VmHWM", "VmRSS", "RssAnon", "RssFile")}
    found = {"server": result["runs"], "server_rows": result["rows"], "server_memory_after": memory}
    found["artifacts"] = result["artifacts"]
    # Made weights take another time than weights that are read.
    return found if weights(options.small) else found | {"start_to_first_completion_s": round(started, 3)}


def budget(options: argparse.Namespace, tokens: int) -> dict:
    """What a server does whose steps have at most so many tokens."""
    with running(options, ["--max-batch-tokens", tokens]) as (_, port, _):
        result = load(options, port, [2 if options.quick else BUDGET_CONCURRENCY])
    found = {"max_batch_tokens": tokens, "server": result["runs"], "server_rows": result["rows"]}
    return found | {"artifacts": result["artifacts"]}


@contextlib.contextmanager
def running(options: argparse.Namespace, more: list) -> Iterator[tuple[subprocess.Popen, int, float]]:
    """A server, its port, and the seconds from its start to the end of its first completion."""
    port = free_port()
    command = [options.binary, "serve", "--model", options.small, *weights(options.small), "--device", options.device]
    began = time.monotonic()
    process = subprocess.Popen([str(word) for word in [*command, *more, "--port", port]], stdout=subprocess.DEVNULL)
    try:
        wait_until_ready(process, port)
        complete(port)
        yield process, port, time.monotonic() - began
    finally:
        process.terminate()
        process.wait()


def load(options: argparse.Namespace, port: int, concurrencies: list[int]) -> dict:
    """What `oxide-infer bench --url` found, and what the server computed with."""
    inputs, outputs = (16, 8) if options.quick else (512, 128)
    work = ["--input-len", inputs, "--output-len", outputs, "--concurrency", ",".join(map(str, concurrencies))]
    rounds = ["--num-requests", "4x", "--warmup", "1x", "--repeat", ROUNDS]
    found = bench(options, ["--url", f"http://127.0.0.1:{port}", *work, *rounds])
    _, metrics = request(port, "GET", "/metrics")
    return found | {"artifacts": artifacts.of_metrics(metrics.decode())}


def wait_until_ready(process: subprocess.Popen, port: int) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with code {process.returncode} before it was ready")
        with contextlib.suppress(OSError):
            if request(port, "GET", "/ready")[0] == 200:
                return
        time.sleep(0.01)
    raise SystemExit("the server was not ready within 300 s")


def complete(port: int) -> None:
    _, models = request(port, "GET", "/v1/models")
    body = {"model": json.loads(models)["data"][0]["id"], "prompt": [300, 301, 302], "max_tokens": 1}
    status, answer = request(port, "POST", "/v1/completions", json.dumps(body))
    if status != 200:
        raise SystemExit(f"the first completion failed with HTTP status {status}: {answer.decode(errors='replace')}")


def request(port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def said(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=records.ROOT).stdout.splitlines()[0]


if __name__ == "__main__":
    main()
