from pathlib import Path

import pytest

from oxide_tile import sources
from oxide_tile.build import check_rules
from oxide_tile.costs import Choice, Cost
from oxide_tile.definition import DefinitionError, Domain
from oxide_tile.profile import ProfileError, Rule, load


def test_the_committed_profile_loads_and_names_every_artifact_once():
    profile = load(sources.ROOT, "sm_90a")
    assert profile.architecture == "sm_90a"
    names = [job.name for job in profile.jobs]
    assert len(names) == len(set(names)) > 0


def write(root: Path, profile: str) -> Path:
    (root / "profiles").mkdir()
    (root / "schedules").mkdir()
    (root / "profiles/p.toml").write_text(profile)
    (root / "schedules/gemm.toml").write_text("[dense.a]\nblock_m = 64\n")
    return root


SELECT = '[[select]]\ncontract = "gemm.dense"\n'
BUILD = '[[build]]\nfamily = "gemm"\nkernel = "dense"\nschedules = ["a"]\n'


def test_a_build_takes_its_schedule_from_the_family_file(tmp_path: Path):
    (job,) = load(write(tmp_path, f'architecture = "sm_90a"\n{BUILD}variants = [{{ dtype = "bf16" }}]\n'), "p").jobs
    assert (job.name, job.schedule) == ("dense.bf16.a", {"block_m": 64})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BUILD, "architecture is missing"),
        (f'architecture = "x"\n{BUILD}speed = 1\n', "unknown key speed"),
        ('architecture = "x"\n' + BUILD.replace('"a"', '"b"'), r"no \[dense.b\]"),
        (f'architecture = "x"\n{BUILD}{BUILD}', "builds dense.a twice"),
        ("architecture = ", "p.toml"),
        (f'architecture = "x"\n{SELECT}', "by is missing"),
        (f'architecture = "x"\n{SELECT}costs = {{}}\n', "costs must be a table"),
        (f'architecture = "x"\n{SELECT}costs = {{ a = 1 }}\n', "the cost of a must be an expression"),
        (f'architecture = "x"\n{SELECT}costs = {{ a = "m +" }}\n', "the cost of a: 'm \\+': expected a number"),
        (f'architecture = "x"\n{SELECT}by = "m"\ncosts = {{ a = "m" }}\n', "unknown key by"),
    ],
)
def test_a_profile_that_says_something_unknown_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(ProfileError, match=message):
        load(write(tmp_path, text), "p")


def test_steps_make_a_rule_each_and_costs_one_rule(tmp_path: Path):
    text = f"""architecture = "x"
{SELECT}by = "m"
steps = [[8, "a"], ["any", "b"]]
{SELECT}when = {{ n = [1, 4096] }}
costs = {{ b = "m * 2", a = "ceil_div(m, 8)" }}
"""
    small, large, costed = load(write(tmp_path, text), "p").rules
    assert (small.when, small.choice.json()) == ({"m": (1, 8)}, {"algorithm": "a"})
    assert (large.when, large.choice.json()) == ({"m": (9, 2**31 - 1)}, {"algorithm": "b"})
    assert costed.when == {"n": (1, 4096)}
    assert costed.choice.json() == {"costs": {"a": "ceil_div(m, 8)", "b": "m * 2"}}


def test_a_rule_must_be_about_what_is_built():
    built = {"contract": "gemm.dense", "algorithm": "a", "name": "dense.a", "dimensions": {"m": {}}}
    manifests = [{**built, "properties": {"residual": "absent"}}]

    def check(residual: str, choice: Choice) -> None:
        check_rules([Rule("gemm.dense", {"residual": residual}, {}, choice)], manifests)

    check("absent", Choice("a"))
    check("absent", Choice(costs={"a": Cost.parse("m + 1")}))
    for residual, choice in (("absent", Choice("b")), ("present", Choice("a"))):
        with pytest.raises(ProfileError, match="which no build that it is for has"):
            check(residual, choice)
    with pytest.raises(ProfileError, match="names b"):
        check("absent", Choice(costs={"a": Cost.parse("m"), "b": Cost.parse("m")}))
    with pytest.raises(ProfileError, match="the cost of a is by rows, which"):
        check("absent", Choice(costs={"a": Cost.parse("m + rows")}))


def test_a_domain_is_within_another_only_if_every_value_is():
    outer = Domain(8, 64, 8)
    assert Domain(16, 64, 16).within(outer)
    assert not Domain(16, 64, 4).within(outer)
    assert not Domain(8, 72, 8).within(outer)
    with pytest.raises(DefinitionError):
        Domain(9, 8)
