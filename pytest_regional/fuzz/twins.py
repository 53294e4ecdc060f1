"""Twins: a run of a region's steps once more, the same or almost: what sharing of regions has to tell apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from pytest_regional.fuzz.building import Builder, Refused
from pytest_regional.fuzz.operators.operator import Picks, Value
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.program import Context, Region, Scope, Step

LONGEST = 3


def add_twin(builder: Builder, choice: int) -> None:
    """Add an eager step and then a run of region steps again; nothing, or a part of it, where that does not fit.

    Args:
        builder: a program under construction.
        choice: which run, and in what its twin differs: in nothing, region id, configs, parameters, or in strides,
            dtype or size of what it reads.
    """
    runs = _runs(builder.steps)
    if not runs:
        return
    run = runs[(choice // len(_DIFFERENCES)) % len(runs)]
    prepare, scoped, picks = _DIFFERENCES[choice % len(_DIFFERENCES)]
    try:
        _repeat(builder, run, _inputs(builder, run, prepare), scoped, picks)
    except Refused:
        return


def _runs(steps: Sequence[Step]) -> list[list[Step]]:
    """Return the last steps of each stretch that stands in one region."""
    found = [list(run) for region, run in itertools.groupby(steps, lambda step: step.region) if region is not None]
    return [run[-LONGEST:] for run in found if any(step.results for step in run[-LONGEST:])]


def _inputs(builder: Builder, run: Sequence[Step], prepare: Callable[[Value], Sequence[Step]]) -> dict[int, int]:
    """Map what the run reads from outside to what its twin is to read, made by eager steps."""
    made = {number for step in run for number in step.results}
    outside = dict.fromkeys(number for step in run for number in step.operands if number not in made)
    numbers = {}
    for number in outside:
        now = number
        for step in prepare(builder.values[number]) if number in builder.values else ():
            (now,) = builder.add(replace(step, operands=(now,))).results
        numbers[number] = now
    return numbers


def _repeat(
    builder: Builder,
    run: Sequence[Step],
    numbers: dict[int, int],
    scoped: Callable[[Scope], Scope],
    picks: Sequence[int] | None,
) -> None:
    for step in run:
        operands = tuple(numbers.get(number, number) for number in step.operands)
        parameters = step.parameters
        if picks is not None and parameters and all(number in builder.values for number in operands):
            parameters = builder.parameters(operator_named(step.operator), operands, Picks(picks)) or parameters
        again = builder.add(
            replace(step, operands=operands, parameters=parameters, results=(), scope=scoped(step.scope))
        )
        numbers.update(zip(step.results, again.results, strict=True))


# What is done to what the twin reads


def _negated(value: Value) -> list[Step]:
    return [Step("neg")] if value.is_float else []


def _restrided(value: Value) -> list[Step]:
    return [Step("matrix_transpose"), Step("contiguous"), Step("matrix_transpose")] if value.rank > 1 else []


def _cast(value: Value) -> list[Step]:
    if not value.is_float:
        return []
    return [Step("to_float32" if value.dtype == "float64" else "to_float64")]


def _cut(value: Value) -> list[Step]:
    size = value.shape[0] - 1 if value.rank else 0
    return [Step("narrow", (), (("dim", 0), ("start", 0), ("length", size)))] if size > 0 else []


# Where the twin stands


def _same(scope: Scope) -> Scope:
    return scope


def _renamed(context: Region | Context) -> Region | Context:
    return replace(context, name="twin") if isinstance(context, Region) else context


def _other_region(scope: Scope) -> Scope:
    return tuple(map(_renamed, scope))


def _other_configs(scope: Scope) -> Scope:
    return tuple(
        replace(context, configs=(("max_fusion_size", 4),)) if isinstance(context, Region) else context
        for context in scope
    )


_DIFFERENCES: tuple[tuple[Callable[[Value], Sequence[Step]], Callable[[Scope], Scope], Sequence[int] | None], ...] = (
    (_negated, _same, None),
    (_negated, _other_region, None),
    (_negated, _other_configs, None),
    (_negated, _other_region, (1, 1, 1, 1)),
    (_restrided, _other_region, None),
    (_cast, _same, None),
    (_cut, _same, None),
)

__all__ = ["add_twin"]
