"""Steps of a trace, cut and shared out, from lines written by hand."""

from pathlib import Path

import pytest
import steps

GATHER, DECODE, HEAD = "gather_bf16_f32_present_threads_128_kernel", "paged_decode_bf16_kernel", "argmax_kernel"


def trace(path: Path, rows: list[int]) -> Path:
    """Steps of 100 us: a gather, a decode that overlaps it, a pause, the head; rows are the gather's blocks."""
    lines = []
    for index, blocks in enumerate(rows):
        begin = 1_000_000 + index * 100_000
        lines += [
            f"kernel {begin + 40_000} {begin + 90_000} 0 {HEAD} 7",
            f"kernel {begin} {begin + 10_000} 5 {GATHER} {blocks}",
            f"kernel {begin + 8_000} {begin + 30_000} 5 {DECODE} 16",
            f"copy {begin + 91_000} {begin + 92_000} 0 to_host 64",
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_launch_adds_what_lies_between_the_end_of_those_before_it_and_its_own(tmp_path: Path) -> None:
    (step, *_) = steps.steps(steps.events(trace(tmp_path / "trace", [8, 8])), 8)
    assert steps.parts(step) == {GATHER: 10_000, DECODE: 20_000, HEAD: 60_000, "copy to_host": 2_000}


def test_only_steps_of_the_rows_asked_for_that_another_such_step_follows_are_taken(tmp_path: Path) -> None:
    found = steps.events(trace(tmp_path / "trace", [8, 16, 8, 8]))
    assert [step[0][0] for step in steps.steps(found, 8)] == [1_200_000]


def test_the_record_has_the_period_of_steps_and_one_of_them_whole(tmp_path: Path) -> None:
    record = steps.describe(steps.steps(steps.events(trace(tmp_path / "trace", [4] * 5)), 4))
    assert (record["steps"], record["step_microseconds"], record["parts_microseconds"]) == (4, 100.0, 92.0)
    assert record["one_step"][1] == [DECODE, 16, 8.0, 30.0]
    assert record["parts"][HEAD] == {"launches": 1.0, "microseconds": 60.0}


def test_a_trace_without_such_steps_is_refused(tmp_path: Path, capsys) -> None:
    path = trace(tmp_path / "trace", [8, 8])
    arguments = [str(path), "--rows", "8", "--revision", "r", "--command", "run", "--json", str(tmp_path / "out")]
    assert steps.main(arguments) == 1
    assert "no two decode steps of 8 rows" in capsys.readouterr().err


def test_a_trace_that_lacks_records_is_refused(tmp_path: Path) -> None:
    path = trace(tmp_path / "trace", [8, 8])
    path.write_text(path.read_text() + "dropped 3\n")
    with pytest.raises(SystemExit, match="3 records are missing"):
        steps.events(path)
