# Two commands do everything on a machine with python3 and make: `make conformance` and `make test`.
# TORCH=2.15.0 uses another torch, in an environment of its own. BACKEND=torch,inductor tests other backends.
PYTHON ?= python3
TORCH ?= 2.13.0
BACKEND ?= reference
# The conformance tests marked quick, or with SUITES=all all of them.
SUITES ?= quick
CHOSEN = $(if $(filter all,$(SUITES)),,$(if $(filter quick,$(SUITES)),-m quick,$(error SUITES is quick or all, not $(SUITES))))
PYTEST_ARGS ?=
# One worker a core, eight at most: each takes a gigabyte, and half of one for the processes that it forks. PYTEST_ARGS=-n0 runs everything in one process.
WORKERS := -n logical --maxprocesses 8 --dist worksteal
DETECTION_ARGS ?=
EXAMPLES_ARGS ?=
PINNED := $(shell sed -n 's/^torch==//p' constraints.txt)
VENV := $(if $(filter $(PINNED),$(TORCH)),.venv,.venv-torch-$(TORCH))
RUN := $(VENV)/bin/python -m
# Some images set it; an interpreter that compiles torch anew starts in eleven seconds instead of four.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: conformance transformers gpu services test test-all core lint types docs reference examples bench coverage detection property check clean

conformance: $(VENV)/installed  ## Run the quick tests of the conformance suites; ends with the conformance table. SUITES=all runs all tests.
	$(RUN) pytest --regional-backend=$(BACKEND) suites $(CHOSEN) $(WORKERS) $(PYTEST_ARGS)

test: $(VENV)/installed  ## Run the project's own tests, less those marked slow.
	$(RUN) pytest tests -m "not slow" $(WORKERS) $(PYTEST_ARGS)

test-all: $(VENV)/installed  ## Run all tests of the project, as every night does.
	$(RUN) pytest tests $(WORKERS) $(PYTEST_ARGS)

core: $(VENV)/installed  ## Run tests of the core in a copy without the packages fuzz, verify, emulation and reference.
	$(VENV)/bin/python tools/core

transformers: $(VENV)/installed  ## Install transformers, and torchtitan without what it requires, and run the suite of their models and passes.
	$(RUN) pip install --quiet --disable-pip-version-check -c $(firstword $(wildcard $(VENV)/constraints.txt) constraints.txt) -e ".[transformers]"
	$(RUN) pip install --quiet --disable-pip-version-check --no-deps torchtitan==0.3.0 spmd_types==0.2.3
	$(RUN) pytest --regional-backend=$(BACKEND) suites/transformers $(WORKERS) $(PYTEST_ARGS)

gpu:  ## Run the suites on the GPU of this machine with the Python that is there (PYTHON=...); installs nothing.
	$(PYTHON) tools/gpu --backend=$(BACKEND) --record=docs/gpu.md $(PYTEST_ARGS)

services:  ## Install what tests of the shared cache and of reports talk to (redis-server, chromium; needs root).
	tools/services

lint: $(VENV)/installed  ## Check formatting, lint, which module may import which, and the size of each package.
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python tools/size

types: $(VENV)/installed  ## Check types.
	$(RUN) mypy

docs: $(VENV)/installed  ## Build the site of the documentation (build/site); a warning is an error.
	$(RUN) sphinx --fail-on-warning --keep-going --quiet docs build/site

reference: $(VENV)/installed  ## Write docs/reference from the docstrings.
	$(VENV)/bin/python tools/reference

examples: $(VENV)/installed  ## Build the wheel, install it alone, run some suites from it and the example repositories.
	$(VENV)/bin/python tools/examples $(EXAMPLES_ARGS)

bench: $(VENV)/installed  ## Measure what is claimed about speed; print the table and write docs/benchmarks.md.
	$(RUN) bench

coverage: $(VENV)/installed  ## Print which functions the emulated GPU gets right (about twenty minutes).
	$(VENV)/bin/python -W ignore -m bench.emulated_coverage --jobs 2

detection: $(VENV)/installed  ## Run suites and fuzzer against faulty backends; print who notices what (about two hours).
	$(RUN) tests.faults.detection --write --json build/detection.json $(DETECTION_ARGS)

property: $(VENV)/installed  ## Plan 1,000,000 small graphs, and partition 10,000 larger ones two ways (about fifteen minutes).
	$(RUN) pytest tests/reference/test_schedule.py tests/reference/test_partition_property.py --hypothesis-profile=full $(PYTEST_ARGS)

check: lint types docs core test examples  ## Everything that CI runs.

clean:  ## Remove the environments.
	rm -rf .venv .venv-torch-*

# torch first and pinned: a range would bring the newest build with several GB of CUDA packages.
$(VENV)/installed: constraints.txt pyproject.toml tools/install
	tools/install $(PYTHON) $(VENV) $(TORCH)
	touch $@
