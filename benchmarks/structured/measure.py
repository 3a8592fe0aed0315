"""What holding answers to a form costs for each token: streams with and without a grammar, in turns, on one server."""

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Forms that no answer completes within TOKENS, so that every stream has the same length.
FORMS: dict[str, dict] = {
    "none": {"ignore_eos": True},
    "json_schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "it",
                "schema": {
                    "type": "array",
                    "minItems": 1000,
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string", "maxLength": 20},
                            "age": {"type": "integer", "minimum": 0, "maximum": 120},
                            "role": {"enum": ["user", "admin", "guest"]},
                            "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3},
                        },
                        "required": ["name", "age", "role", "tags"],
                        "additionalProperties": False,
                    },
                },
            },
        }
    },
    "regex": {"structured_outputs": {"regex": "([a-z]{1,12} ){1000}"}},
}
TOKENS = 96
BATCHES = (1, 32)


def stream(port: int, form: str, seed: int) -> list[float]:
    """When each event with text came. The first also has the prompt's time."""
    body = {
        "messages": [{"role": "user", "content": "Write about the people of a small town."}],
        "temperature": 0.8,
        "seed": seed,
        "max_tokens": TOKENS,
        "stream": True,
        "return_token_ids": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body | FORMS[form]), headers)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    times: list[float] = []
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            times += [time.perf_counter()] * len(choice.get("token_ids") or [])
    connection.close()
    assert len(times) == TOKENS, f"{form}: {len(times)} tokens"
    return times


def sample(port: int, form: str, batch: int, seed: int) -> float:
    """Milliseconds for a token of each stream, from the last first token to the first last one."""
    with ThreadPoolExecutor(batch) as pool:
        streams = list(pool.map(lambda number: stream(port, form, seed + number), range(batch)))
    begin, end = max(times[0] for times in streams), min(times[-1] for times in streams)
    tokens = sum(1 for times in streams for at in times if begin < at <= end)
    return 1000 * (end - begin) * batch / tokens


def start(binary: Path, model: Path, port: int, threads: int) -> subprocess.Popen:
    command = [binary, "serve", "--model", model, "--device", "cpu", "--port", str(port), "--threads", str(threads)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server ended"
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/ready")
                if connection.getresponse().status == 200:
                    return server
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError("the server does not get ready")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def described(samples: dict) -> str:
    lines = ["| streams | form | ms for a token | more than without a form |", "|---|---|---|---|"]
    for batch in BATCHES:
        plain = statistics.median(samples[f"{batch} none"])
        for form in FORMS:
            values = samples[f"{batch} {form}"]
            median = statistics.median(values)
            spread = f"{median:.2f} ({min(values):.2f} to {max(values):.2f})"
            more = "" if form == "none" else f"{median - plain:+.2f} ms ({100 * (median / plain - 1):+.0f} %)"
            lines.append(f"| {batch} | {form} | {spread} | {more} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args()
    port = free_port()
    load = os.getloadavg()
    server = start(options.binary, options.model, port, options.threads)
    samples: dict[str, list[float]] = {f"{batch} {form}": [] for batch in BATCHES for form in FORMS}
    try:
        for form in FORMS:
            stream(port, form, 0)  # compiles the grammar
        for number in range(options.rounds):
            for batch in BATCHES:
                for form in FORMS:
                    samples[f"{batch} {form}"].append(sample(port, form, batch, 1000 * number))
    finally:
        server.terminate()
        server.wait(60)
    revision = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    record = {
        "revision": revision,
        "model": options.model.name,
        "threads": options.threads,
        "cpus": os.cpu_count(),
        "load_before": load,
        "load_after": os.getloadavg(),
        "tokens_per_stream": TOKENS,
        "ms_per_token": samples,
    }
    options.record.joinpath("record.json").write_text(json.dumps(record, indent=1) + "\n")
    text = (
        f"Revision {revision}, {options.model.name}, {options.threads} threads of {os.cpu_count()} processors; "
        f"load average before {load[0]:.1f}, after {os.getloadavg()[0]:.1f}. Median (lowest to highest) of "
        f"{options.rounds} rounds; a token's time is that of one token of each stream.\n\n{described(samples)}\n"
    )
    options.record.joinpath("record.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
