"""Run with pytest; scripts/test.sh does."""

import measure
import plot_inputs
import pytest
import records
import report
from records import Measured, find


def target(**changes):
    row = {"work": "decode", "section": "runs", "where": {"batch": 8}, "metric": "speed.step", "unit": "ms"}
    return row | {"better": "lower", "target": 1.1} | changes


def offline(median, least, greatest):
    return {"runs": [{"batch": 8, "speed": {"step": {"p50": median, "min": least, "max": greatest}}}]}


def test_several_rounds_of_a_server_become_a_median_and_those_of_the_other_server_are_left_out():
    def turn(server, rate):
        return {"server": server, "concurrency": 4, "summary": {"rate": rate}}

    record = {"server": [turn("url", 10), turn("against", 90), turn("against", 80), turn("url", 30), turn("url", 20)]}
    assert find(record, "summary.rate", "server", {"concurrency": 4}) == Measured(20, 10, 30)
    assert find(record, "summary.rate", "server", {"concurrency": 5}) is None
    assert find(record, "summary.ttft.p99", "server", {"concurrency": 4}) is None


def test_a_model_is_named_by_how_its_name_begins_and_a_record_before_rounds_has_one_value():
    record = {"runs": [{"model": "A 7B, random", "x": 1}, {"model": "A 1.5B", "x": 2}]}
    assert find(record, "x", "runs", {"model": "A 1.5B"}) == Measured(2)
    assert find(record, "x", "runs", {"model": "A"}) == Measured(1.5, 1, 2)
    assert find({"start_s": 64}, "start_s") == Measured(64)


@pytest.mark.parametrize(
    ("changes", "median", "word", "ratio"),
    [
        ({}, 1.1, "met", "2.00"),
        ({}, 1.101, "**missed**", "2.00"),
        ({"better": "higher"}, 1.1, "met", "0.50"),
        ({"better": "higher"}, 1.099, "**missed**", "0.50"),
    ],
)
def test_a_target_is_met_in_its_direction_and_the_ratio_is_over_one_where_this_engine_is_better(
    changes, median, word, ratio
):
    cells = report.target_row(target(**changes), offline(median, 1, 2), offline(median * 2, 1, 2)).split(" | ")
    assert (cells[3], cells[5]) == (word, f"{ratio} |")


def test_what_a_record_does_not_tell_apart_is_met_only_if_the_greatest_of_all_is():
    part = target(metric="speed.part.p99", in_all="speed.step", target=800)
    peer = {"runs": [{"batch": 8, "speed": {"step": {"p99": 922}}}]}
    met = report.target_row(part, offline(100, 10, 734.3), peer)
    assert met == "| decode, ms | at most 734 | ≤ 800 | met | 922 in all | – |"
    unknown = report.target_row(part | {"target": 300}, offline(100, 10, 734.3), peer)
    assert "| at most 734 | ≤ 300 | not measured |" in unknown
    assert "| – | ≤ 1.1 | not measured | – | – |" in report.target_row(target(), {"runs": []}, {"runs": []})


def test_numbers_are_written_as_a_reader_expects():
    assert [report.number(value) for value in (4.698, 47.9, 582.6, 8989.4)] == ["4.7", "48", "583", "8,989"]
    measured = [report.precise(value) for value in (1.2, 10.248, 734.262, 29033.1)]
    assert measured == ["1.200", "10.25", "734", "29,033"]
    assert [report.given(value) for value in (1.05, 2.0, 9731, 10.03)] == ["1.05", "2", "9,731", "10.03"]


def test_every_target_names_something_that_its_peer_or_the_record_can_have():
    record, vllm = records.load(records.newest()), records.load(records.VLLM)
    for row in records.load(records.TARGETS)["rows"]:
        found = [
            find(of, metric, row.get("section"), where)
            for of, where in ((record, records.ours(row)), (vllm, row.get("where")))
            for metric in (row["metric"], row.get("in_all", "-") + ".p99")
        ]
        assert any(found), row["work"]


def test_measuring_makes_a_row_for_every_target():
    runs = [
        {"model": f"{name}, --weights random:1", "batch": batch, "input_len": inputs, "max_batch_tokens": tokens}
        for name, works in measure.BATCHES.items()
        for batch, inputs, _, _, tokens in works
    ]
    server = [{"concurrency": concurrency} for concurrency in measure.CONCURRENCIES]
    record = {"runs": [run | {"is": 1} for run in runs], "server": [row | {"is": 1} for row in server]}
    for row in records.load(records.TARGETS)["rows"]:
        if "section" in row:
            assert find(record, "is", row["section"], records.ours(row)) == Measured(1), row["work"]


def test_a_record_says_by_which_command_it_was_made_and_of_which_revision(monkeypatch):
    words = ["measure.py", "--binary", "oxide-infer", "--model-1.5b", "DIR", "--revision", "abc", "--record", "FILE"]
    monkeypatch.setattr("sys.argv", [*words, "--device", "cpu", "--quick"])
    header = measure.header(measure.arguments())
    assert (header["command"], header["revision"]) == ([*words, "--device", "cpu", "--quick"], "abc")


def test_a_model_of_another_shape_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 1536, "num_hidden_layers": 28}')
    measure.check_shape("Qwen2.5-1.5B shape", tmp_path)
    with pytest.raises(SystemExit, match="hidden_size is 1536; it must be 3584"):
        measure.check_shape("Qwen2.5-7B shape", tmp_path)


def test_the_check_fails_when_a_block_or_a_plot_is_not_of_the_records(monkeypatch, capsys):
    assert report.main(["--check"]) == 0
    record, vllm = records.load(records.newest()), records.load(records.VLLM)
    (row,) = (line for line in report.gpu_block(record, vllm, "x.md").splitlines() if line.startswith("| 1 |"))
    for entry in record["server"]:
        if entry["concurrency"] == 1:
            entry["summary"]["output_tokens_per_s"] = 777
    changed = report.gpu_block(record, vllm, "x.md")
    monkeypatch.setattr(report, "all_blocks", lambda: {"README.md": {"gpu": changed}})
    monkeypatch.setattr(plot_inputs, "digest", lambda: "another")
    assert report.main(["--check"]) == 1
    shown = capsys.readouterr().out
    cells = row.split(" | ")
    assert f"-{row}" in shown and "+" + " | ".join([cells[0], "777", *cells[2:]]) in shown and cells[1] != "777"
    assert "serving-dark.svg was drawn from other records or by another script" in shown
