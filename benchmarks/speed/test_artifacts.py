"""Run with pytest; scripts/test.sh does."""

import pytest
from measure import artifacts

METRICS = """\
# HELP oxide_infer_operator_executions Operators executed on the GPU, by kernel artifact.
# TYPE oxide_infer_operator_executions counter
oxide_infer_operator_executions_total{model_name="m",artifact="gather.bf16"} 12
oxide_infer_operator_executions_total{model_name="m",artifact="argmax.single"} 0
oxide_infer_operator_executions_total{model_name="m",artifact="dense.bf16.tile_64x128"} 3
oxide_infer_plan_info{model_name="m",goal="fastest",artifacts="0123abcd"} 1
"""


def test_metrics_name_the_hash_and_what_was_executed():
    executed = ["dense.bf16.tile_64x128", "gather.bf16"]
    assert artifacts.of_metrics(METRICS) == {"sha256": "0123abcd", "executed": executed}
    assert artifacts.of_metrics(METRICS.replace("oxide_infer_", "vllm:")) is None
    assert artifacts.of_metrics('oxide_infer_plan_info{model_name="m",goal="deterministic"} 1\n') is None


def test_runs_of_one_build_are_put_together_and_those_of_several_are_refused():
    first, second = {"sha256": "a", "executed": ["y"]}, {"sha256": "a", "executed": ["x", "y"]}
    assert artifacts.merged([None, first, second]) == {"sha256": "a", "executed": ["x", "y"]}
    assert artifacts.merged([None, None]) is None
    with pytest.raises(SystemExit, match="hash to a, b"):
        artifacts.merged([first, first | {"sha256": "b"}])
