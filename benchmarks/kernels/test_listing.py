"""The listing of a run's kernels, from a log in ncu's form that was written by hand."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import listing  # noqa: E402

LOG = """==PROF== Connected to process 42 (/usr/bin/oxide-infer)
==PROF== Profiling "gather_bf16_f32_present_kernel": 0%....50%....100% - 1 pass
"ID","Process ID","Kernel Name","Block Size","gpu__time_duration.sum"
"","","","","us"
"0","42","fill_kernel(int *)","(32, 1, 1)","9.00"
"1","42","gather_bf16_f32_present_kernel(const int *)","(128, 1, 1)","1.50"
"2","42","paged_prefill_kernel(const void *, int)","(128, 1, 1)","1,024.00"
"3","42","product_kernel","(128, 1, 1)","2.00"
"4","42","gather_bf16_f32_present_kernel(const int *)","(128, 1, 1)","1.00"
"5","42","paged_decode_kernel","(128, 1, 1)","3.25"
"6","42","gather_bf16_f32_present_kernel(const int *)","(128, 1, 1)","1.25"
"7","42","paged_decode_kernel","(128, 1, 1)","3.00"
"8","42","product_kernel","(128, 1, 1)","2.00"
"9","42","product_kernel","(128, 1, 1)","2.50"
"""
KERNELS = {
    "fill": ["fill_kernel"],
    "gather": ["gather_bf16_f32_present_kernel"],
    "attention": ["paged_prefill_kernel", "paged_decode_kernel"],
    "product": ["product_kernel"],
    "unused": ["unused_kernel"],
}
COMMAND = "oxide-infer bench --repeat 1"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the script over a log with a folder of artifacts, on a machine that there is not, and returns the record."""
    folder, log, record = tmp_path / "artifacts", tmp_path / "log.csv", tmp_path / "record.json"
    folder.mkdir()
    (folder / "index.json").write_text("{}")
    for name, symbols in KERNELS.items():
        launches = [{"symbol": symbol} for symbol in symbols]
        manifest = {"name": name, "cubin": {"sha256": f"hash of {name}"}, "launches": launches}
        (folder / f"{name}.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(listing, "machine", lambda: {"device": "a GPU", "driver": "1.2"})

    def run_one(text: str, command: str = COMMAND) -> dict | None:
        log.write_text(text)
        words = [log, "--revision", "abc", "--command", command, "--artifacts", folder, "--json", record]
        status = listing.main([str(word) for word in words])
        assert (status == 0) == record.exists()
        return json.loads(record.read_text()) if status == 0 else None

    return run_one


def test_a_record_has_the_last_step_of_each_kind_and_says_what_ran_where(run):
    record = run(LOG)
    said = ("revision", "command", "device", "driver", "launches")
    assert [record[key] for key in said] == ["abc", COMMAND, "a GPU", "1.2", 10]
    launched = ("attention", "gather", "product", "fill")
    assert record["artifacts"] == {name: f"hash of {name}" for name in launched}
    assert (record["prefill"]["launches"], record["prefill"]["microseconds"]) == (3, 1027.5)
    decode = record["decode"]
    assert decode["order"] == [
        "gather_bf16_f32_present_kernel",
        "paged_decode_kernel",
        "product_kernel",
        "product_kernel",
    ]
    assert decode["artifacts"]["product"] == {"launches": 2, "microseconds": 4.5}


def test_times_are_read_in_the_unit_that_the_log_gives_them_in(run):
    record = run(LOG.replace('"us"', '"ns"').replace("1,024.00", "1,024,000.00"))
    assert record["prefill"]["microseconds"] == 1024.0


def test_a_kernel_of_no_artifact_a_log_of_no_kernel_and_one_without_a_step_make_no_record(run, capsys):
    assert run(LOG.replace("product_kernel", "cublas_kernel")) is None
    assert "3 launches of cublas_kernel, which is no artifact's" in capsys.readouterr().err
    assert run("".join(LOG.splitlines(keepends=True)[:4])) is None
    assert run(LOG.replace("paged_decode_kernel", "product_kernel")) is None
    assert "no decode step" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", "  "])
def test_a_record_without_a_command_is_not_written(run, capsys, command):
    with pytest.raises(SystemExit):
        run(LOG, command)
    assert "it must be the command that ncu ran" in capsys.readouterr().err
