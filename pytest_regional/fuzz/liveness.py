"""Which values and steps of a program its results depend on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.program import Block, Step


def draws(step: Step) -> bool:
    """Tell whether the step's own operator draws random numbers."""
    return operator_named(step.operator).draws


def touched(step: Step) -> tuple[int, ...]:
    """Return the values that ``step`` makes or writes to."""
    return (*step.results, *(step.operands[position] for position in operator_named(step.operator).writes))


def live_values(steps: Sequence[Step], ends: Iterable[int]) -> set[int]:
    """Return the values that ``ends`` depend on, as far as operands tell."""
    live = set(ends)
    for step in reversed(steps):
        if live.intersection(touched(step)):
            live.update(step.operands)
    return live


def live_steps(block: Block) -> set[Step]:
    """Return the steps that a block's result depends on."""
    live = live_values(block.steps, (block.result,))
    return {step for step in block.steps if live.intersection(step.results)}


__all__ = ["draws", "live_steps", "live_values", "touched"]
