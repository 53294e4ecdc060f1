"""The oracles of repetition: ``results_kept``, ``retained_backward``, ``determinism`` and ``threads``."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from threading import Barrier, BrokenBarrierError
from typing import Any

import torch

from pytest_regional._torch.config import FUNCTORCH, patched_config
from pytest_regional._torch.fx_graphs import flatten
from pytest_regional.fuzz.findings.files import from_data, reason_of, to_data
from pytest_regional.fuzz.model.program import Program, Region, Step
from pytest_regional.fuzz.modes import in_mode
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.oracles.example_run import ExampleRun, ExpectedResults, Run
from pytest_regional.fuzz.oracles.oracle import NoClaim, Oracle, kinds_of
from pytest_regional.fuzz.oracles.parity import mismatches_of, raise_failure, without_fake_strides
from pytest_regional.harness.parity.compare import BadProgramError, compare
from pytest_regional.harness.parity.execution import random_cotangent
from pytest_regional.harness.raised import origin_of
from pytest_regional.harness.record import GeneratedCode


def check_results_kept(example: ExampleRun) -> None:
    """Raise where the second call overwrites what the first returned, or its gradients."""
    run = example.cold
    if len(run.executions) < 2:
        raise NoClaim("there was no second call")
    if run.overwritten:
        raise example.violation(
            "results_kept",
            "run",
            f"after a second call: {'; '.join(map(str, run.overwritten[:4]))}",
            origin=kinds_of(run.overwritten),
        )


# Retained backwards


def check_retained_backward(example: ExampleRun) -> None:
    """Raise where backwards with ``retain_graph`` fail, or do not add up to eager's gradients."""
    if not example.trains:
        raise NoClaim("no backward is compiled")
    expected = _expected(example)
    # The very first backward is to be one that keeps its graph: it decides how the backward compiles.
    example.regional.reset(keep_code=True)
    # PyTorch documents that graphs are kept only with this setting: a donated buffer is overwritten by one backward.
    with patched_config(FUNCTORCH, {"donated_buffer": False}):
        run = example.run(example.program, calls=1, around=_backpropagating)
    raise_failure(example, run, "retained_backward", "backward")
    mismatches = expected.compared(run.executions[0]).mismatches
    inputs = example.expected[0].inputs
    wrong = without_fake_strides(example, inputs, [mismatch for mismatch in mismatches if "grad" in mismatch.where])
    if wrong:
        raise example.violation(
            "retained_backward",
            "backward",
            f"after a backward with retain_graph, one from the first output alone, and a last one: "
            f"{'; '.join(map(str, wrong[:4]))}",
            origin=kinds_of(wrong),
        )


def _expected(example: ExampleRun) -> ExpectedResults:
    """Return what eager and float64 make of the same backwards on the first inputs."""
    try:
        return example.expected_of(_backpropagating(example.program.function), example.expected[0].inputs)
    except BadProgramError as error:
        raise NoClaim(f"eager refuses a second backward: {reason_of(error)}") from error


def _backpropagating(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` with backwards behind it that keep the graph for another one; gradients add up."""

    def call(*inputs: Any) -> Any:
        output = fn(*inputs)
        roots = [leaf for leaf in flatten(output)[0] if _wants_gradient(leaf)]
        cotangents = [random_cotangent(root, 0, index) for index, root in enumerate(roots)]
        if roots:
            torch.autograd.backward(roots, cotangents, retain_graph=True)
            torch.autograd.backward(roots[:1], cotangents[:1], retain_graph=True)
        return output

    return call


def _wants_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def check_determinism(example: ExampleRun) -> None:
    """Raise where a second compile plans otherwise, generates other code, or gives other bits."""
    example.regional.reset(keep_code=True)
    again = example.run(example.program, calls=1)
    raise_failure(example, again, "determinism")
    if plan_of(example.cold) != plan_of(again):
        before, after = plan_of(example.cold), plan_of(again)
        raise example.violation(
            "determinism", "compile", f"compiled twice, the plan was {before}, then {after}", origin="another plan"
        )
    if code_of(example.cold.code) != code_of(again.code):
        raise example.violation(
            "determinism", "compile", "compiled twice in fresh caches, the code differs", origin="other code"
        )
    differs = compare(example.cold.executions[0], again.executions[0], level="bitwise").mismatches
    if differs and _eager_repeats(example):
        raise example.violation(
            "determinism", "run", f"compiled twice, other bits: {'; '.join(map(str, differs[:4]))}", origin="other bits"
        )


def _eager_repeats(example: ExampleRun) -> bool:
    """Return whether eager gives the same bits twice: some operators add in an order that threads decide."""
    with example.regional.observer.paused():
        again = example.execute(example.program.function, example.expected[0].inputs)
    return compare(example.expected[0].eager, again, level="bitwise").ok


def plan_of(run: Run) -> list[tuple[str, list[Any], list[str | None]]]:
    """Return kind and partitions of each graph, and the regions in the order of their calls, as plain data."""
    return [
        (graph.kind, [(partition.regions, partition.operators) for partition in graph.partitions], graph.called)
        for graph in run.watched.graphs
    ]


#: Paths, and keys of generated files: what two compiles in different folders may name differently.
_NAMES = re.compile(r"/\S+|\bc[a-z2-7]{50,}\b|\b[0-9a-f]{32,}\b")


def code_of(code: GeneratedCode) -> list[str]:
    """Return the generated sources without comments, and without names of files."""
    return [
        "\n".join(_NAMES.sub("", line) for line in source.text.splitlines() if not line.lstrip().startswith("#"))
        for source in code
    ]


THREADS = 4

#: Threads that have not answered by then wait for each other, also on a busy machine.
_SECONDS = 1800.0

#: Times that each thread calls what it compiled, while the others do.
_CALLS = 4


def check_threads(example: ExampleRun) -> None:
    """Raise where one of several threads fails that each compile and run the program, its regions renamed."""
    if any(operator_named(step.operator).uses_rng for step in example.program.all_steps()):
        raise NoClaim("it draws random numbers, and threads share their generator")
    if not example.trains:
        raise NoClaim("no backward is compiled")
    result = example.regional.in_new_process(compile_at_once, to_data(example.program), example.mode, timeout=_SECONDS)
    failures: list[tuple[str, str]] = result.value
    if failures:
        origin, detail = failures[0]
        raise example.violation(
            "threads",
            "backward",
            f"{len(failures)} of {THREADS} threads failed that compile at once: {detail}",
            origin=origin,
        )


def compile_at_once(regional: Any, data: dict[str, Any], mode: str) -> list[tuple[str, str]]:
    """Compile variants of a program in threads, then call them at once; return origin and detail of each failure.

    Runs in a new process. Half of the threads call with other inputs than the rest, so that arguments and results that
    are mixed up show.
    """
    program = from_data(data)
    examples = [
        ExampleRun(regional, renamed(program, f" of thread {number}"), mode, blame=False) for number in range(THREADS)
    ]
    for example in examples:
        _ = example.expected
    together = Barrier(THREADS)
    with in_mode(regional, mode), ThreadPoolExecutor(THREADS) as pool:
        runs = list(pool.map(lambda example: example.run(example.program, calls=1), examples))
        failures = [_failure_of(example, run) for example, run in zip(examples, runs, strict=True)]
        if not any(failures):
            failures = list(pool.map(_called_at_once, examples, runs, range(THREADS), repeat(together)))
        return [failure for failure in failures if failure is not None]


def _called_at_once(example: ExampleRun, run: Run, number: int, together: Barrier) -> tuple[str, str] | None:
    """Call what is compiled on both inputs in turn, while the other threads do so; return the first failure."""
    for turn in range(_CALLS):
        try:
            together.wait(_SECONDS)
        except BrokenBarrierError:  # another thread has failed
            return None
        order = (0, 1) if (number + turn) % 2 else (1, 0)
        called = {which: example.execute(run.compiled, example.expected[which].inputs) for which in order}
        again = replace(run, executions=(called[0], called[1]))
        failure = _failure_of(example, again)
        if failure is not None:
            together.abort()
            return failure
    return None


def _failure_of(example: ExampleRun, run: Run) -> tuple[str, str] | None:
    error = run.error
    if error is not None:
        return origin_of(error), f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    mismatches = mismatches_of(example, run)
    return (kinds_of(mismatches), str(mismatches[0])) if mismatches else None


def renamed(program: Program, suffix: str) -> Program:
    """Return ``program`` with another name for each region, so that no thread waits for the others' results."""

    def changed(step: Step) -> Step:
        scope = (
            replace(context, name=f"{context.name}{suffix}", after=tuple(f"{first}{suffix}" for first in context.after))
            if isinstance(context, Region)
            else context
            for context in step.scope
        )
        return replace(step, scope=tuple(scope))

    blocks = tuple(replace(block, steps=tuple(map(changed, block.steps))) for block in program.blocks)
    return replace(program, steps=tuple(map(changed, program.steps)), blocks=blocks)


ORACLES = (
    Oracle(
        "results_kept",
        "A second call leaves what the first one gave, gradients included, as it is.",
        check_results_kept,
        requires=("results_kept",),
        place=110,
    ),
    Oracle(
        "retained_backward",
        "A backward that keeps its graph may be the first, and be run again, whole or from one output.",
        check_retained_backward,
        requires=("backward",),
        every=4,
        place=130,
        fails_in_capture=True,
        after_parity=True,
    ),
    Oracle(
        "determinism",
        "Compiled twice in fresh caches, a program has the same plan and code, and gives the same bits.",
        check_determinism,
        requires=("regions",),
        every=8,
        place=210,
    ),
    Oracle(
        "threads",
        "Several threads may compile forwards and backwards at once.",
        check_threads,
        requires=("regions", "backward"),
        every=256,
        place=220,
    ),
)
