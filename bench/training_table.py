"""Print five Adam steps of the debug Llama through each pipeline: ``python -m bench.training_table``.

``--layers 2`` is quick. Each pipeline trains a copy of the model; every step is taken again by eager and by float64
from where the compiled run stands (see docs/training-parity.md). Loss and gradient error are the compiled run's, each
followed by eager's; errors are the largest of any element of any gradient, against float64.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import time
import warnings
from typing import Any

import torch

from pytest_regional.harness.training import TrainingParityError, TrainingReport
from pytest_regional.testing import regional
from suites.full_graph.llama import DEBUG, Llama, Sizes, token_batches

PIPELINES = {"no compiler": "aot_eager", "regional_inductor": "reference", "full_inductor": "inductor"}


def trained(harness: Any, backend: str, sizes: Sizes, steps: int, level: str) -> TrainingReport:
    """Return the report of one training, of one that failed as well."""
    torch.manual_seed(0)
    model, batches = Llama(sizes), token_batches(harness, sizes, steps)
    try:
        return harness.assert_training_parity(
            model,
            batches,
            compiled=lambda copy: harness.pipeline.ending_with(backend).compile(copy, batches[0]),
            level=level,
        )
    except TrainingParityError as error:
        return error.report


def show(name: str, backend: str, sizes: Sizes, steps: int) -> None:
    """Print verdict, compiles, time and the table of one pipeline."""
    level = "bitwise" if backend == "aot_eager" else "close"
    with regional("reference", "cpu", expects_regions=False) as harness:
        begin = time.perf_counter()
        report = trained(harness, backend, sizes, steps, level)
        seconds, compiles = time.perf_counter() - begin, harness.counters["region_compiles"]
    print(f"\n{name}: {compiles} compiles, {seconds:.0f} s with all references\n{report}", flush=True)


def main() -> None:
    """Print a table for each pipeline."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=DEBUG.layers)
    parser.add_argument("--length", type=int, default=DEBUG.length)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    sizes = dataclasses.replace(DEBUG, layers=options.layers, length=options.length)
    warnings.filterwarnings("ignore", message="full_inductor compiles whole graphs")
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores; {sizes}")
    for name, backend in PIPELINES.items():
        show(name, backend, sizes, options.steps)


if __name__ == "__main__":
    main()
