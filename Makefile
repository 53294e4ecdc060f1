# Two commands do everything on a machine with python3 and make: `make conformance` and `make test`.
# TORCH=2.15.0 uses another torch, in an environment of its own. BACKEND=torch,inductor tests other backends.
PYTHON ?= python3
TORCH ?= 2.13.0
BACKEND ?= reference
PYTEST_ARGS ?=
# One worker a core, eight at most: each takes a gigabyte. PYTEST_ARGS=-n0 runs everything in one process.
WORKERS := -n logical --maxprocesses 8 --dist worksteal
DETECTION_ARGS ?=
EXAMPLES_ARGS ?=
PINNED := $(shell sed -n 's/^torch==//p' constraints.txt)
VENV := $(if $(filter $(PINNED),$(TORCH)),.venv,.venv-torch-$(TORCH))
RUN := $(VENV)/bin/python -m

.PHONY: conformance transformers gpu services test attacks lint types docs reference examples bench measurements coverage detection property check clean

conformance: $(VENV)/installed  ## Run the conformance suites on real models; ends with the conformance table.
	$(RUN) pytest --regional-backend=$(BACKEND) suites $(WORKERS) $(PYTEST_ARGS)

test: $(VENV)/installed  ## Run the project's own tests.
	$(RUN) pytest tests $(WORKERS) $(PYTEST_ARGS)

attacks: $(VENV)/installed  ## Run all attacks on the package, those that take minutes too.
	REGIONAL_SLOW_ATTACKS=1 $(RUN) pytest tests/attacks $(WORKERS) $(PYTEST_ARGS)

transformers: $(VENV)/installed  ## Install transformers into the environment and run the suite of its models.
	$(RUN) pip install --quiet --disable-pip-version-check -c $(firstword $(wildcard $(VENV)/constraints.txt) constraints.txt) -e ".[transformers]"
	$(RUN) pytest --regional-backend=$(BACKEND) suites/transformers $(WORKERS) $(PYTEST_ARGS)

gpu:  ## Run the suites on the GPU of this machine with the Python that is there (PYTHON=...); installs nothing.
	$(PYTHON) tools/gpu --backend=$(BACKEND) --record=docs/gpu.md $(PYTEST_ARGS)

services:  ## Install what tests of the shared cache and of reports talk to (redis-server, chromium; needs root).
	tools/services

lint: $(VENV)/installed  ## Check formatting, lint, and which module may import which.
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(VENV)/bin/lint-imports

types: $(VENV)/installed  ## Check types.
	$(RUN) mypy

docs: $(VENV)/installed  ## Build the site of the documentation (build/site); a warning is an error.
	$(RUN) sphinx --fail-on-warning --keep-going --quiet docs build/site

reference: $(VENV)/installed  ## Write docs/reference from the docstrings.
	$(VENV)/bin/python tools/reference

examples: $(VENV)/installed  ## Build the wheel, install it alone, run some suites from it and the example repositories.
	$(VENV)/bin/python tools/examples $(EXAMPLES_ARGS)

bench: $(VENV)/installed  ## Measure what is claimed about speed; print the table and write docs/benchmarks.md.
	$(RUN) tests.benchmarks

measurements: $(VENV)/installed  ## Print the other measurements that the documentation quotes.
	$(VENV)/bin/python tests/benchmarks/parity_power.py
	$(VENV)/bin/python tests/benchmarks/partitioning.py
	$(VENV)/bin/python tests/benchmarks/partition_counts.py
	$(VENV)/bin/python tests/benchmarks/warm_start.py
	$(VENV)/bin/python tests/benchmarks/faults.py
	$(RUN) tests.reference.corruption
	$(VENV)/bin/python tests/benchmarks/code_reader.py
	$(RUN) tests.benchmarks.random_order
	$(RUN) tests.benchmarks.training_table
	$(RUN) tests.benchmarks.full_graph_compiles
	$(RUN) tests.benchmarks.emulated_speed

coverage: $(VENV)/installed  ## Print which functions the emulated GPU gets right (about twenty minutes).
	$(VENV)/bin/python -W ignore -m tests.benchmarks.emulated_coverage --jobs 2

detection: $(VENV)/installed  ## Run suites and fuzzer against faulty backends; print who notices what (about two hours).
	$(RUN) tests.mutants.detection --write --json build/detection.json $(DETECTION_ARGS)

property: $(VENV)/installed  ## Plan 1,000,000 small graphs, and partition 10,000 larger ones two ways (about fifteen minutes).
	$(RUN) pytest tests/reference/test_schedule.py tests/reference/test_partition_property.py --hypothesis-profile=full $(PYTEST_ARGS)

check: lint types docs test examples  ## Everything that CI runs.

clean:  ## Remove the environments.
	rm -rf .venv .venv-torch-*

# torch first and pinned: a range would bring the newest build with several GB of CUDA packages.
$(VENV)/installed: constraints.txt pyproject.toml tools/install
	tools/install $(PYTHON) $(VENV) $(TORCH)
	touch $@
