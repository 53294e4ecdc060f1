"""The law ``threads``: forward and backward of several programs compile at once.

In a process of its own: what goes wrong here may leave tracing broken for the whole process.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.files import from_data, to_data
from pytest_regional.fuzz.lanes import in_lane
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.oracles.errors import kinds_of, origin_of
from pytest_regional.fuzz.oracles.law import Law, NoClaim
from pytest_regional.fuzz.oracles.parity import mismatches_of
from pytest_regional.fuzz.oracles.trial import Trial
from pytest_regional.fuzz.program import Program, Region, Step

THREADS = 4
_SECONDS = 300.0


def check_threads(trial: Trial) -> None:
    """Raise where one of several threads fails that each compile and run the program, its regions renamed."""
    if any(operator_named(step.operator).draws for step in trial.program.all_steps()):
        raise NoClaim("it draws random numbers, and threads share their generator")
    if not trial.trains:
        raise NoClaim("no backward is compiled")
    result = trial.regional.in_new_process(compile_at_once, to_data(trial.program), trial.lane, timeout=_SECONDS)
    failures: list[tuple[str, str]] = result.value
    if failures:
        origin, detail = failures[0]
        raise trial.broken(
            "threads",
            "backward",
            f"{len(failures)} of {THREADS} threads failed that compile at once: {detail}",
            origin=origin,
        )


def compile_at_once(regional: Any, data: dict[str, Any], lane: str) -> list[tuple[str, str]]:
    """Compile variants of a program in threads; return origin and detail of each failure. Runs in a new process."""
    program = from_data(data)
    trials = [Trial(regional, renamed(program, f" of thread {number}"), lane, blame=False) for number in range(THREADS)]
    for trial in trials:
        _ = trial.cases
    with in_lane(regional, lane), ThreadPoolExecutor(THREADS) as pool:
        outcomes = [pool.submit(_failure_of, trial) for trial in trials]
        return [failure for outcome in outcomes if (failure := outcome.result()) is not None]


def _failure_of(trial: Trial) -> tuple[str, str] | None:
    run = trial.run(trial.program, calls=1)
    error = run.error
    if error is not None:
        return origin_of(error), f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    mismatches = mismatches_of(trial, run)
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


LAWS = (
    Law(
        "threads",
        "Several threads may compile forwards and backwards at once.",
        check_threads,
        requires=("regions", "backward"),
        every=256,
    ),
)
