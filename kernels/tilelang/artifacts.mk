# Kernel artifacts: included by the Makefile at the root, from which every path here starts.
#
# `make artifacts` needs Python 3.11 or newer and the network once; `make artifacts-check` needs neither.

KERNELS := kernels/tilelang
KERNELS_VENV := $(KERNELS)/.venv
KERNELS_PYTHON := PYTHONPATH=$(KERNELS) PYTHONDONTWRITEBYTECODE=1 $(KERNELS_VENV)/bin/python

.PHONY: artifacts artifacts-check artifacts-reproduce kernels-check

## artifacts: compile the GPU kernels whose sources changed into crates/oxide-infer-cuda/artifacts
artifacts: $(KERNELS_VENV)/build.stamp
	$(KERNELS_PYTHON) -m oxide_tile

## artifacts-check: prove that the committed artifacts match their manifests and the present kernel sources
artifacts-check:
	cargo test --quiet -p oxide-infer-cuda --test artifacts

## artifacts-reproduce: rebuild two artifacts from scratch and compare every byte with the committed ones
artifacts-reproduce: $(KERNELS_VENV)/build.stamp
	$(KERNELS)/reproduce.sh

## kernels-check: lint the artifact builders, that of the kernels in Rust too, and test the first
kernels-check: $(KERNELS_VENV)/build.stamp $(KERNELS_VENV)/dev.stamp
	$(KERNELS_VENV)/bin/ruff check $(KERNELS)
	$(KERNELS_VENV)/bin/ruff check --config $(KERNELS)/pyproject.toml $(NATIVE)
	$(KERNELS_VENV)/bin/ruff format --check --config $(KERNELS)/pyproject.toml $(KERNELS) $(NATIVE)
	$(KERNELS_PYTHON) -m pytest -q $(KERNELS)/tests

$(KERNELS_VENV)/bin/python:
	python3 -m venv $(KERNELS_VENV)

$(KERNELS_VENV)/build.stamp: $(KERNELS)/requirements.lock | $(KERNELS_VENV)/bin/python
	$(KERNELS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	touch $@

$(KERNELS_VENV)/dev.stamp: $(KERNELS)/requirements-dev.lock | $(KERNELS_VENV)/bin/python
	$(KERNELS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	touch $@
