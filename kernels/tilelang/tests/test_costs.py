import json
from pathlib import Path

import pytest

from device_check.artifact import Artifact, Selection, value
from oxide_tile.costs import Choice, Cost, CostError
from oxide_tile.expr import evaluate

WAVES = "2000 + ceil_div(ceil_div(m, 128) * ceil_div(n, 256), 132) * (1000 + 900 * ceil_div(k, 64))"
# One wave of 136 tiles is two: 2,000 + 2 * (1,000 + 900 * 24).
WAVES_AT, WAVES_VALUE = {"m": 2176, "n": 2048, "k": 1536}, 47_200


def test_a_cost_reads_as_the_reader_in_rust_does():
    for text, expected in [
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("100 / 7 % 5 * 2", 8),
        ("10 - 3 - 2", 5),
        (" min(m,n )+max(m, n) ", 11),
        ("ceil_div(n + m, 3)", 4),
    ]:
        assert evaluate(Cost.parse(text).expr, {"m": 3, "n": 8}) == expected, text
    assert evaluate(Cost.parse(WAVES).expr, WAVES_AT) == WAVES_VALUE
    assert Cost.parse(WAVES).names() == {"m", "n", "k"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected a number, a name or `(` at byte 0"),
        ("m +", "at byte 3"),
        ("(m", "expected `)` at byte 2"),
        ("m n", "expected an operator or the end at byte 2"),
        ("min(m)", "expected `,` at byte 5"),
        ("min m", "expected `(` at byte 4"),
        ("-1", "at byte 0"),
        ("M", "no token of the grammar at byte 0"),
        ("m // 2", "at byte 3"),
        ("1.5", "no token of the grammar at byte 1"),
        ("18446744073709551616", "does not fit 64 bits"),
        ("(" * 100, "nests deeper than 32"),
        ("1" * 600, "longer than 512"),
    ],
)
def test_what_the_grammar_lacks_is_refused(text: str, complaint: str):
    with pytest.raises(CostError) as refusal:
        Cost.parse(text)
    assert complaint in str(refusal.value)


def test_the_cheapest_of_the_admitted_serves_and_the_first_of_equals():
    choice = Choice(costs={name: Cost.parse(text) for name, text in {"b": "m", "a": "m", "c": "m - 1"}.items()})
    assert choice.among(["a", "b", "c"], {"m": 4}) == "c"
    assert choice.among(["b", "a", "other"], {"m": 4}) == "a"
    assert choice.among(["other"], {"m": 4}) is None
    with pytest.raises(CostError):
        Choice("a", {"a": Cost.parse("m")})
    with pytest.raises(CostError):
        Choice(costs={})


def artifact(algorithm: str, most: int, residual: str = "absent") -> Artifact:
    domain = {"min": 1, "max": most, "multiple_of": 1}
    facts = {"name": algorithm, "algorithm": algorithm, "contract": "gemm.dense", "dimensions": {"m": domain}}
    properties = {"properties": {"residual": residual}, "conditions": [], "launches": []}
    return Artifact(Path(), {**facts, **properties})


def test_the_device_check_chooses_as_the_registry_does():
    rule = {"contract": "gemm.dense", "properties": {"residual": "absent"}, "when": {}}
    costs = {"small": "m * 10", "large": "100 + ceil_div(m, 8)", "other": "0"}
    artifacts = [artifact("small", 64), artifact("large", 4096), artifact("free", 4096)]
    artifacts.append(artifact("other", 99, "present"))
    selection = Selection([{**rule, "choice": {"costs": costs}}], artifacts)
    chosen = {m: selection.algorithm(artifacts[2], {"m": m}) for m in (10, 11, 64, 65)}
    # 100 and 110 against 102: above 64 rows `small` is not admitted, `free` has no cost, and `other` another property.
    assert chosen == {10: "small", 11: "large", 64: "large", 65: "large"}
    assert Selection([{**rule, "choice": {"algorithm": "free"}}], artifacts).algorithm(artifacts[0], {"m": 1}) == "free"
    assert value(WAVES, WAVES_AT) == WAVES_VALUE


def test_a_choice_is_json_of_one_form():
    assert json.loads(json.dumps(Choice("a").json())) == {"algorithm": "a"}
    assert Choice(costs={"a": Cost.parse("m  + 1")}).json() == {"costs": {"a": "m  + 1"}}
