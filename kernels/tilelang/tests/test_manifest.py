"""Lowers one kernel for real; the compiler that follows is the reproduction script's to check."""

import json

import pytest

from oxide_tile import lowering, sources
from oxide_tile.build import define
from oxide_tile.definition import DefinitionError, Domain
from oxide_tile.expr import Name, text
from oxide_tile.launch import Lowered, Pointer, Scalar, TensorMap
from oxide_tile.manifest import encode, narrowed, parameter_json
from oxide_tile.profile import Job, load


def job(name: str) -> Job:
    return next(job for job in load(sources.ROOT, "sm_90a").jobs if job.name == name)


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    definition = define(job("dense_small.bf16.bf16.bias.m16_64x128_s5"))
    return lowering.lower(definition.function, definition.pass_configs, definition.derived)


def test_the_grid_is_an_expression_of_the_contract_dimensions(lowered: Lowered):
    (launch,) = lowered.launches
    assert [text(extent) for extent in launch.grid] == ["ceil_div(n, 64)", "ceil_div(m, 16)", "1"]
    assert launch.block == (160, 1, 1)


def test_weights_come_by_tensor_map_and_unused_operands_not_at_all(lowered: Lowered):
    (launch,) = lowered.launches
    maps = {p.operand: p for p in launch.parameters if isinstance(p, TensorMap)}
    assert set(maps) == {"input", "weight"}
    assert [text(extent) for extent in maps["weight"].dimensions] == ["k", "n"]
    assert [text(stride) for stride in maps["weight"].strides] == ["k * 2"]
    assert (maps["weight"].box, maps["weight"].swizzle) == ((64, 64), "128b")
    pointers = {p.operand: p.writes for p in launch.parameters if isinstance(p, Pointer)}
    assert pointers == {"bias": False, "output": True}
    assert {text(p.value) for p in launch.parameters if isinstance(p, Scalar)} == {"m", "n", "k", "n / 4"}
    assert {operand.name for operand in lowered.operands} == {"input", "weight", "bias", "output"}


def test_a_profile_may_narrow_a_domain_but_not_widen_it():
    wanted = job("dense_small.bf16.bf16.bias.m16_64x128_s5")
    definition = define(wanted)
    narrow = Job(**{**vars(wanted), "domain": {"n": Domain(64, 4096, 64)}})
    assert narrowed(narrow, definition)["n"] == Domain(64, 4096, 64)
    for domain in ({"n": Domain(4, 4096, 4)}, {"rows": Domain()}):
        with pytest.raises(DefinitionError):
            narrowed(Job(**{**vars(wanted), "domain": domain}), definition)


def test_what_a_kernel_asks_of_its_keys_is_no_number_of_the_contract():
    definition = define(job("paged_decode.bf16.64.whole.rows16"))
    assert parameter_json(Scalar("i32", Name("settled"), 4), definition) == {"kind": "settled", "element": "i32"}
    assert parameter_json(Scalar("i32", Name("batch"), 4), definition)["kind"] == "scalar"


def test_encoding_keeps_the_value_and_puts_short_lists_on_one_line():
    value = {"a": [1, 2], "b": {"c": "x, y", "d": None}, "e": [{"f": "g"}], "h": []}
    assert json.loads(encode(value)) == value
    assert b"[1, 2]" in encode(value)
