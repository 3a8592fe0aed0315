# Artifacts of the device kernels that are written in Rust: included by the Makefile at the root, from which every path here starts.
#
# `make native-artifacts` needs Debian 12's apt, Python 3.11 or newer and the network once; `make artifacts-check` needs none of it.

NATIVE := kernels/rust
NATIVE_PYTHON := PYTHONPATH=$(NATIVE):kernels/tilelang PYTHONDONTWRITEBYTECODE=1 $(NATIVE)/.venv/bin/python

.PHONY: native-artifacts native-artifacts-reproduce

## native-artifacts: compile the GPU kernels in Rust into crates/oxide-infer-cuda/artifacts
native-artifacts: $(NATIVE)/.toolchain/stamp
	$(NATIVE_PYTHON) -m oxide_native artifacts

## native-artifacts-reproduce: rebuild them elsewhere and compare every byte with the committed ones
native-artifacts-reproduce: $(NATIVE)/.toolchain/stamp
	$(NATIVE)/reproduce.sh

$(NATIVE)/.toolchain/stamp: $(NATIVE)/toolchain.lock $(NATIVE)/requirements.lock
	$(NATIVE)/setup.sh
