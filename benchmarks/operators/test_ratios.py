"""Run with pytest; scripts/test.sh does. Neither PyTorch nor a GPU is needed."""

import matrix
import ours
import pytest
import ratios
from ratios import blocks

RATES = {"read_GB/s": 4000.0, "copy_GB/s": 4000.0, "TFLOP/s": 700.0}


def entry(row_id, family, mine, theirs, eager=()):
    """A row of a record whose every sample is one number."""
    turns = {"ours": [mine] * 3, "theirs": [theirs] * 3, "peer": "peer"}
    found = {"id": row_id, "family": family, "warm": turns, "flushed": turns, "layout": "", "peer_layout": ""}
    return found | {"eager": dict(eager)}


def record(*rows, calls=()):
    """A record of rows, and of times of calls of ours in two turns."""
    turn = {"times": [{"row": row, "eager_us": [us, us]} for row, us in calls]}
    return {"rows": list(rows), "ours_eager": [turn, turn], "rates": RATES}


def met(record):
    """The verdicts, by how what is asked begins."""
    found, _ = ratios.read(record)
    return {goal.what.split(",")[0]: goal.met for goal in ratios.targets(found, record["rates"])}


def test_sizes_of_a_row_are_those_worked_by_hand():
    decode = matrix.Row("a", "paged_decode", {"heads": [4, 2], "head_dim": 128, "sequences": [[3, 1, 10]]})
    assert decode.cache_bytes == 3 * 10 * 2 * 128 * 2 * 2
    assert decode.bytes == decode.cache_bytes + 3 * 4 * 128 * 2 * 2
    # Two rows that see three and four keys: 7 pairs, each a product with a key and one with a value.
    prefill = matrix.Row("b", "paged_prefill", {"heads": [4, 2], "head_dim": 128, "sequences": [[1, 2, 4]]})
    assert prefill.operations == 7 * 4 * 128 * 2 * 2
    append = matrix.Row("c", "rope_append", {"heads": [4, 2], "head_dim": 128, "sequences": [[2, 1, 9]]})
    assert append.bytes == 2 * 8 * 128 * 2 * 2
    assert matrix.Row("d", "gemm", {"m": 2, "n": 8, "k": 16}).operations == 512


def test_every_row_has_an_artifact_in_a_layout_of_pages_that_is_listed():
    known = ours.Ours()
    for row in matrix.rows():
        if row.family == "gemm":
            dimensions = {name: row.sizes[name] for name in "mnk"}
            assert known.select("gemm.dense", ours.GEMM, dimensions).admits(dimensions)
    sizes = {"batch": 1, "num_pages": 9, "max_pages": 9, "num_q_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    artifact, dimensions, layout, page_size = known.paged("attention.paged_decode", ours.ATTENTION, lambda size: sizes)
    assert artifact.admits(dimensions) and (layout, page_size) in ours.PAGES
    with pytest.raises(ours.NotCovered, match="0 artifacts for gemm.dense"):
        known.select("gemm.dense", {**ours.GEMM, "input": "f64"}, {"m": 1, "n": 8, "k": 8})


def test_a_slow_row_misses_the_least_ratio_though_the_mean_is_met():
    rows = (
        entry("rms norm 1 x 1536", "rms_norm", 1.0, 4.0),
        entry("rms norm 8 x 1536", "rms_norm", 1.0, 0.9),
    )
    verdicts = met(record(*rows))
    assert verdicts["replays with the cache flushed"] is True
    assert verdicts["of these"] is False
    assert verdicts["calls (eager)"] is None


def test_calls_are_compared_with_the_fastest_peer_and_both_turns_of_ours():
    row = entry("rms norm 1 x 1536", "rms_norm", 1.0, 1.0, eager={"a": [9.0, 8.0, 10.0], "b": [6.0, 6.0, 6.0]})
    found, failed = ratios.read(record(row, calls=[("rms norm 1 x 1536", 2.0)]))
    assert found[0].eager_ratio == 3.0 and not failed
    # Records from before graphs of one call have none.
    assert found[0].alone_ratio is None


def test_calls_that_are_graphs_of_one_are_compared_with_the_same_calls_of_the_peer():
    row = entry("rms norm 1 x 1536", "rms_norm", 1.0, 1.0, eager={"a": [6.0, 6.0, 6.0]})
    of = record(row, calls=[("rms norm 1 x 1536", 2.0)])
    of["ours_eager"][1]["times"][0]["graph_of_one_us"] = [1.5, 1.5]
    found, _ = ratios.read(of)
    assert (found[0].eager_ratio, found[0].alone_ratio) == (3.0, 4.0)


def test_a_row_that_failed_is_listed_and_not_counted():
    whole = record({"id": "rms norm 1 x 1536", "family": "rms_norm", "error": "results differ\nby much"})
    whole |= {"revision": "abcdefgh", "device": "D", "driver": "1"}
    text = ratios.summary_block(whole, "name.json")
    assert "- rms norm 1 x 1536: results differ by much" in text
    assert "| products, geometric mean ≥ 0.97 | – | not measured |" in text


def test_shares_of_the_machine_are_of_reads_for_decode_and_of_copies_for_norms():
    # 256 x 4,096 keys of 8 heads: 4.3 GB, at 4,000 GB/s 1,074 us; 90% of it is 1,194 us.
    decode = entry("decode 32/8 B 256 kv 4096", "paged_decode", 1190.0, 1190.0)
    assert met(record(decode))["decode of more than 100 MB of keys and values"] is True
    decode = entry("decode 32/8 B 256 kv 4096", "paged_decode", 1210.0, 1210.0)
    assert met(record(decode))["decode of more than 100 MB of keys and values"] is False
    # 32,768 rows of 4,096: 537 MB read and written, at 80% of 4,000 GB/s 168 us.
    assert met(record(entry("rms norm 32768 x 4096", "rms_norm", 167.0, 1.0)))["RMS norm of 256 MB"] is True
    assert met(record(entry("rms norm 32768 x 4096", "rms_norm", 169.0, 1.0)))["RMS norm of 256 MB"] is False


def test_products_of_few_rows_are_held_against_what_reading_takes():
    # 4096 x 4096 weights: 33.6 MB, at 90% of 4,000 GB/s 9.3 us, and 2.5.
    key = "products of at most 16 rows within bytes / (0.9 × rate of reads) + 2.5 us"
    assert met(record(entry("gemm 8B o m 1", "gemm", 11.7, 11.7)))[key] is True
    late = record(entry("gemm 8B o m 1", "gemm", 12.0, 12.0))
    assert met(late)[key] is False
    assert "8B o m 1 12.0 (11.8)" in ratios.products_block(late)


def test_a_ratio_that_loses_is_marked_and_one_that_was_not_measured_is_a_dash():
    assert [ratios.times(value) for value in (0.94, 0.95, None)] == ["**0.94**", "0.95", "–"]


def test_a_block_is_replaced_between_its_marks_which_must_be_there_once():
    begin, end = "<!-- made by tool: x -->", "<!-- end: x -->"
    assert blocks.replace(f"a\n{begin}\nold\n{end}\nb", "tool", "x", "new\\1") == f"a\n{begin}\nnew\\1\n{end}\nb"
    for text in ("none", f"{begin}\n{end}\n{begin}\n{end}"):
        with pytest.raises(SystemExit, match="there must be one"):
            blocks.replace(text, "tool", "x", "new")


def test_a_check_changes_nothing_and_shows_the_difference(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- made by tool: x -->\nold\n<!-- end: x -->\n")
    found = {"page.md": {"x": "new"}}
    (difference,) = blocks.write(tmp_path, "tool", found, check=True)
    assert "-old" in difference and "+new" in difference and "old" in page.read_text()
    assert blocks.write(tmp_path, "tool", found, check=False) == []
    assert blocks.write(tmp_path, "tool", found, check=True) == []
