"""Seconds of a program in each mode of the fuzzer, for ``rows.fuzz``.

The same programs, in the same run: first by the naive loop that one would write (``torch.compile`` with the backend,
eager, ``torch.testing.assert_close`` of outputs and gradients, ``torch._dynamo.reset()``), then checked in each mode
against ``compiles`` and ``parity``, which also run eager in float64 and call the compiled program a second time on
other inputs. Every way has its own cache directory, empty at first, and begins with one program that does not count.
Each program takes its turn in the naive loop, in ``interpret`` and in ``native``, so that they share what else the
machine does; an emulated GPU cannot take turns with them. A program that fails in any way counts in none.
"""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from pytest_regional.backends import registry
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.oracles import check
from pytest_regional.harness.isolation import cache_folder, seed_everything
from pytest_regional.harness.regional import Regional
from pytest_regional.testing import regional

from .fuzz_false_alarms import drawn

PARITY = ("compiles", "parity")
Way = Callable[[Program], Any]


def naive(backend: str) -> Way:
    """Return the loop that one would write."""
    factory = registry.resolve(backend).factory

    def run(program: Program) -> None:
        torch._dynamo.reset()
        compiled = torch.compile(program.function, backend=factory(), fullgraph=True)
        results = []
        for function in (program.function, compiled):
            inputs = program.inputs()
            seed_everything(0)
            with torch._inductor.config.patch(fallback_random=True):
                outputs = function(*inputs)
                roots = [output for output in outputs if output.requires_grad] if program.training else []
                if roots:
                    torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
            leaves = [tensor.grad for tensor in inputs if tensor.is_leaf]
            results.append([*outputs, *(grad for grad in leaves if grad is not None)])
        torch.testing.assert_close(*results, equal_nan=True)

    return run


def checked(harness: Regional, mode: str) -> Way:
    """Return checking in a mode."""
    return lambda program: check(harness, program, mode=mode, oracles=PARITY, blame=False)


#: Seconds of each program, by way; not a number where the way failed, which may be early or after a search.
Spent = dict[str, list[float]]


def timed(way: Way, program: Program, spent: Spent, name: str) -> None:
    """Note the seconds that ``way`` takes for ``program``."""
    started = time.perf_counter()
    try:
        way(program)
    except Exception as error:  # noqa: BLE001 - a defect of the backend is a finding, not a time
        print(f"  {name}: {type(error).__name__}: {' '.join(str(error).split())[:100]}", file=sys.stderr)
        started = math.nan
    spent.setdefault(name, []).append(time.perf_counter() - started)


def without_failures(spent: Spent) -> Spent:
    """Leave out the programs that failed in any way, in all ways.

    Raises:
        ValueError: no program is left.
    """
    turns = [turn for turn in zip(*spent.values(), strict=True) if not any(map(math.isnan, turn))]
    if not turns:
        raise ValueError("every program failed somewhere; what failed is on standard error")
    return dict(zip(spent, map(list, zip(*turns, strict=True)), strict=True))


def measure(backend: str, examples: Sequence[Program]) -> Spent:
    """Return the seconds of each way for ``examples``, without the first, which warms up, and those that fail."""
    spent: Spent = {}
    with contextlib.ExitStack() as stack:
        folders = {
            name: Path(stack.enter_context(tempfile.TemporaryDirectory())) for name in ("naive", "interpret", "native")
        }
        for number, program in enumerate(examples):
            counted = spent if number else Spent()
            with cache_folder(folders["naive"]):
                timed(naive(backend), program, counted, "naive loop")
            for mode in ("interpret", "native"):
                with regional(backend, "cpu", cache_dir=folders[mode], expects_regions=False) as harness:
                    timed(checked(harness, mode), program, counted, mode)
    with regional(backend, "cuda-emulated", expects_regions=False) as harness:
        for number, program in enumerate(examples):
            timed(checked(harness, "emulated"), program, spent if number else Spent(), "emulated")
    return without_failures(spent)


def with_regions(count: int, seed: int = 0) -> list[Program]:
    """Draw ``count`` programs that have regions."""
    return [program for program in drawn(count * 2, seed) if program.regions][-count:]
