"""Programs from a seed, without Hypothesis: for benchmarks, and for whoever only wants programs."""

from __future__ import annotations

import random

from pytest_regional.fuzz.operators.table import families
from pytest_regional.fuzz.program import Program
from pytest_regional.fuzz.rows import ArgumentRow, Options, PlanRow, ProgramRows, StepRow, program_of

#: Integers of rows are below this; they are taken modulo what there is to choose from.
LIMIT = 1 << 12


def random_program(source: random.Random, *, max_steps: int = 12, options: Options | None = None) -> Program:
    """Return a program drawn from ``source``; the same for the same state."""
    return program_of(random_rows(source, max_steps=max_steps), options)


def random_rows(source: random.Random, *, max_steps: int = 12) -> ProgramRows:
    """Return rows drawn from ``source``."""

    def numbers(count: int) -> tuple[int, ...]:
        return tuple(source.randrange(LIMIT) for _ in range(count))

    def step() -> StepRow:
        return step_row(numbers(10))

    arguments = tuple(ArgumentRow(*numbers(9)) for _ in range(source.randint(1, 4)))
    blocks = tuple(tuple(step() for _ in range(source.randint(1, 3))) for _ in range(source.choice((0, 1, 2))))
    off = frozenset(name for name in families() if source.random() < 0.5) if source.random() < 0.5 else frozenset()
    plan = plan_row(numbers(8), off)
    return ProgramRows(arguments, tuple(step() for _ in range(source.randint(1, max_steps))), blocks, plan)


def step_row(numbers: tuple[int, ...]) -> StepRow:
    """Return the row of ten integers."""
    operator, a, b, c, d, first, second, third, scope, returned = numbers
    return StepRow(operator, (a, b, c, d), (first, second, third), scope, returned)


def plan_row(numbers: tuple[int, ...], off: frozenset[str]) -> PlanRow:
    """Return the row of eight integers and the families that are off."""
    shapes, dtype, a, b, c, training, dynamic, nonfinite = numbers
    return PlanRow(shapes, dtype, (a, b, c), training, dynamic, nonfinite, off)


__all__ = ["LIMIT", "plan_row", "random_program", "random_rows", "step_row"]
