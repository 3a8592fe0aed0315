import hashlib
from pathlib import Path

from oxide_tile.sources import hash_files, source_files


def test_the_hash_covers_names_lengths_and_contents(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"xy")
    (tmp_path / "b").write_bytes(b"")
    stated = b"a\0" + (2).to_bytes(8, "little") + b"xy" + b"b\0" + (0).to_bytes(8, "little")
    assert hash_files(["a", "b"], tmp_path) == hashlib.sha256(stated).hexdigest()


def test_a_family_depends_on_its_own_file_and_not_on_its_siblings():
    files = source_files("gemm")
    assert "oxide_tile/families/gemm.py" in files
    assert "oxide_tile/families/sampling.py" not in files
    assert list(files) == sorted(files)


def test_a_family_depends_on_what_its_file_imports():
    files = source_files("paged_decode")
    assert "oxide_tile/families/attention.py" in files
    assert "oxide_tile/families/common.py" in files
    assert "oxide_tile/families/paged_prefill.py" not in files
