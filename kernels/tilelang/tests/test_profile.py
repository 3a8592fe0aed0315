from pathlib import Path

import pytest

from oxide_tile import sources
from oxide_tile.definition import DefinitionError, Domain
from oxide_tile.profile import ProfileError, load


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
    ],
)
def test_a_profile_that_says_something_unknown_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(ProfileError, match=message):
        load(write(tmp_path, text), "p")


def test_a_domain_is_within_another_only_if_every_value_is():
    outer = Domain(8, 64, 8)
    assert Domain(16, 64, 16).within(outer)
    assert not Domain(16, 64, 4).within(outer)
    assert not Domain(8, 72, 8).within(outer)
    with pytest.raises(DefinitionError):
        Domain(9, 8)
