"""The files under deploy/ name flags, routes and metrics that there are."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from fronts import nginx_command
from serving import BINARY, ROOT, ROUTER, Server

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))


@cache
def flags_of(*command: str | Path) -> set[str]:
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=True)
    return set(re.findall(r"--[a-z][a-z-]+", shown.stdout))


def flags_in(arguments: list[str]) -> set[str]:
    return {argument.split("=")[0] for argument in arguments if argument.startswith("--")}


def documents() -> Iterator[dict]:
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            assert {"apiVersion", "kind", "metadata"} <= set(document), path
            yield document


def manifest(kind: str, name: str) -> dict:
    (found,) = [it for it in documents() if it["kind"] == kind and it["metadata"]["name"] == name]
    return found


def container(name: str) -> dict:
    (only,) = manifest("Deployment", name)["spec"]["template"]["spec"]["containers"]
    return only


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


@pytest.fixture(scope="module")
def metrics(server: Server) -> set[str]:
    """The names of all samples. Buckets and HTTP counts are there once something has been asked."""
    server.client().chat.completions.create(model="smollm2", messages=[{"role": "user", "content": "Hi"}], max_tokens=2)
    return set(re.findall(r"^([a-z_:]+)", server.http.get("/metrics").text, re.MULTILINE))


def test_the_manifests_select_what_they_make_and_name_flags_that_there_are() -> None:
    pods = {name: manifest("Deployment", name)["spec"]["template"] for name in ("oxide-infer", "oxide-infer-router")}
    for name, pod in pods.items():
        assert manifest("Service", name)["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert manifest("Deployment", name)["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert flags_in(container("oxide-infer")["args"]) <= flags_of(BINARY, "serve")
    router = container("oxide-infer-router")["args"]
    assert flags_in(router) <= flags_of(ROUTER)
    (label, value) = [it for it in router if it.startswith("--selector=")][0].split("=")[1:]
    assert pods["oxide-infer"]["metadata"]["labels"][label] == value


def test_probes_ask_routes_that_answer_and_a_drain_has_the_time_it_needs(server: Server) -> None:
    ours = container("oxide-infer")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert server.http.get(ours[probe]["httpGet"]["path"]).status_code == 200
    assert (ours["livenessProbe"]["httpGet"]["path"], ours["readinessProbe"]["httpGet"]["path"]) == (
        "/health",
        "/ready",
    )
    drain = seconds(ours["args"][ours["args"].index("--drain-timeout") + 1])
    wait = ours["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = manifest("Deployment", "oxide-infer")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > drain + wait


def test_the_autoscaler_reads_the_queue(metrics: set[str]) -> None:
    scaler = manifest("HorizontalPodAutoscaler", "oxide-infer")["spec"]
    names = [metric["pods"]["metric"]["name"] for metric in scaler["metrics"]]
    assert names == ["oxide_infer_num_requests_waiting"] and set(names) <= metrics
    assert manifest(scaler["scaleTargetRef"]["kind"], scaler["scaleTargetRef"]["name"])


def test_the_dashboard_shows_metrics_that_there_are(metrics: set[str]) -> None:
    dashboard = json.loads((DEPLOY / "grafana/oxide-infer.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    names = {name for query in queries for name in re.findall(r"\b(?:oxide_infer|http)_[a-z_]+", query)}
    assert len(queries) > 15 and len(names) > 12
    assert names <= metrics, names - metrics
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_scrape_config_asks_the_route_of_metrics(server: Server) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert server.http.get(job["metrics_path"]).status_code == 200
    nginx = (DEPLOY / "nginx/nginx.conf").read_text()
    assert all(target in nginx for target in job["static_configs"][0]["targets"])


def test_the_container_needs_only_the_binary() -> None:
    lines = [line for line in (DEPLOY / "Containerfile").read_text().splitlines() if not line.startswith("#")]
    steps = [line.split(maxsplit=1) for line in lines if line]
    assert [step for step, _ in steps if step in ("FROM", "COPY", "ADD", "RUN")] == ["FROM", "COPY"]
    entry = json.loads(dict(steps)["ENTRYPOINT"])
    assert entry[:2] == ["/usr/local/bin/oxide-infer", "serve"]
    assert flags_in(entry) <= flags_of(BINARY, "serve")
    # What the base image has: glibc and libgcc.
    linked = subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=True).stdout
    libraries = {line.split()[0].split("/")[-1].split(".so")[0] for line in linked.splitlines()}
    assert libraries <= {"linux-vdso", "libgcc_s", "libm", "libc", "ld-linux-x86-64", "libpthread", "libdl"}, linked


def test_the_unit_runs_the_server_and_gives_a_drain_its_time() -> None:
    text = (DEPLOY / "systemd/oxide-infer.service").read_text()
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    command = shlex.split(settings["ExecStart"])
    assert command[:2] == ["/usr/local/bin/oxide-infer", "serve"]
    assert flags_in(command) <= flags_of(BINARY, "serve")
    assert int(settings["TimeoutStopSec"]) > seconds(command[command.index("--drain-timeout") + 1])
    assert settings["RestartPreventExitStatus"] == "1 2"


def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    command = nginx_command(tmp_path, [8001, 8002], 8000)
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=30, check=False)
    assert checked.returncode == 0, checked.stderr
