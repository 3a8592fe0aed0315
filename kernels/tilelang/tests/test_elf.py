import pytest
import zstandard

from oxide_tile import elf, sources

ARTIFACTS = sources.ROOT.parent.parent / "crates/oxide-infer-cuda/artifacts/sm_90a"


def test_a_cubin_tells_its_kernels_and_their_parameters():
    name = "paged_decode.bf16.128.split.rows16"
    cubin = zstandard.ZstdDecompressor().decompress((ARTIFACTS / f"{name}.cubin.zst").read_bytes())
    entries = elf.entries(cubin)
    symbol = name.replace(".", "_")
    assert set(entries) == {f"{symbol}_kernel", f"{symbol}_kernel_1"}
    attend = entries[f"{symbol}_kernel"]
    assert attend.parameter_sizes.count(128) == 2
    # As the assembler's own report says (`--ptxas-options=-v`).
    assert (attend.registers, attend.stack_bytes) == (155, 0)
    assert entries[f"{symbol}_kernel_1"].registers == 48


def test_other_files_are_refused():
    with pytest.raises(ValueError, match="not a 64-bit"):
        elf.entries(b"#!/bin/sh\n")
