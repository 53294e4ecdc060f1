"""Near-duplicates: two regions that differ in one thing, which sharing of equal partitions has to tell apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_regional.fuzz.model.building import Builder, Refused
from pytest_regional.fuzz.model.program import Region, Scope, Step
from pytest_regional.fuzz.operators.operator import ProgramValue

LONGEST = 3
FIRST, SECOND = Region("one"), Region("other")


def add_near_duplicates(builder: Builder, choice: int) -> None:
    """Add two regions that differ in one thing; nothing, or a part of them, where that does not fit.

    Args:
        builder: a program under construction.
        choice: in what they differ, and what they compute: a run of region steps again, or a few steps made for it.
    """
    difference = DIFFERENCES[choice % len(DIFFERENCES)]
    run = _chosen(builder, choice // len(DIFFERENCES), difference)
    if not run:
        return
    try:
        first = _repeat(builder, run, {}, FIRST)
        inputs = _inputs(builder, run, difference.prepare)
        second = _repeat(builder, difference.change(run), inputs, difference.region)
        for number in _read_outside(run, first, second, difference):
            builder.add(Step("neg", (number,)))
    except Refused:
        return


@dataclass(frozen=True)
class Difference:
    """What the second region has that the first has not.

    Attributes:
        prepare: eager steps that make what it reads of what the first one reads.
        change: makes its steps of those of the first one.
        region: its annotation.
        own: whether the steps are made for it, in place of those that were drawn.
        reads: which of its values eager code reads, the first and the second region's; they leave the regions.
    """

    prepare: Callable[[ProgramValue], Sequence[Step]] = lambda value: ()
    change: Callable[[Sequence[Step]], Sequence[Step]] = lambda run: run
    region: Region = SECOND
    own: bool = False
    reads: tuple[int, int] | None = None


def _chosen(builder: Builder, number: int, difference: Difference) -> Sequence[Step]:
    drawn = list(_runs(builder.steps))
    if drawn and not difference.own:
        return drawn[number % len(drawn)]
    values = [value for value in builder.values.values() if value.is_float and value.rank > 1]
    return _made(values[number % len(values)].number) if values else ()


def _runs(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield the last steps of each stretch that stands in one region."""
    for region, run in itertools.groupby(steps, lambda step: step.region):
        last = list(run)[-LONGEST:]
        if region is not None and len(last) > 1 and any(step.results for step in last):
            yield last


def _made(number: int) -> list[Step]:
    """Return steps that have a number, a dimension, and values that may leave or not; results count from -1 down."""
    return [
        Step("mul_number", (number,), (("value", 0.5),), (-1,)),
        Step("cumsum", (-1,), (("dim", 0),), (-2,)),
        Step("atan", (-2,), (), (-3,)),
    ]


def _inputs(builder: Builder, run: Sequence[Step], prepare: Callable[[ProgramValue], Sequence[Step]]) -> dict[int, int]:
    """Map what the run reads from outside to what its near-duplicate is to read, made by eager steps."""
    made = {number for step in run for number in step.results}
    outside = dict.fromkeys(number for step in run for number in step.operands if number not in made)
    numbers = {}
    for number in outside:
        now = number
        for step in prepare(builder.values[number]) if number in builder.values else ():
            (now,) = builder.add(replace(step, operands=(now,))).results
        numbers[number] = now
    return numbers


def _repeat(builder: Builder, run: Sequence[Step], numbers: dict[int, int], region: Region) -> dict[int, int]:
    """Add the run once more, in another region; return what its values, and those that it reads, are called now."""
    for step in run:
        operands = tuple(numbers.get(number, number) for number in step.operands)
        again = builder.add(replace(step, operands=operands, results=(), scope=_in_region(step.scope, region)))
        numbers |= dict(zip(step.results, again.results, strict=True))
    return numbers


def _in_region(scope: Scope, region: Region) -> Scope:
    return (*(context for context in scope if not isinstance(context, Region)), region)


def _read_outside(
    run: Sequence[Step], first: dict[int, int], second: dict[int, int], difference: Difference
) -> Iterator[int]:
    if difference.reads is not None:
        for values, place in zip((first, second), difference.reads, strict=True):
            yield values[run[place].results[0]]


# What is done to what the second region reads


def _negated(value: ProgramValue) -> list[Step]:
    return [Step("neg")] if value.is_float else []


def _restrided(value: ProgramValue) -> list[Step]:
    return [Step("matrix_transpose"), Step("contiguous"), Step("matrix_transpose")] if value.rank > 1 else []


def _cast(value: ProgramValue) -> list[Step]:
    if not value.is_float:
        return []
    return [Step("to_float32" if value.dtype == "float64" else "to_float64")]


def _cut(value: ProgramValue) -> list[Step]:
    size = value.shape[0] - 1 if value.rank else 0
    return [Step("narrow", (), (("dim", 0), ("start", 0), ("length", size)))] if size > 0 else []


# What is done to its steps


def _with(operator: str, **parameters: float) -> Callable[[Sequence[Step]], Sequence[Step]]:
    changed = tuple(parameters.items())
    return lambda run: [replace(step, parameters=changed) if step.operator == operator else step for step in run]


DIFFERENCES = (
    Difference(_negated),
    Difference(_negated, region=replace(SECOND, configs=(("max_fusion_size", 4),))),
    Difference(_restrided),
    Difference(_cast),
    Difference(_cut),
    Difference(change=_with("mul_number", value=1.5), own=True),
    Difference(change=_with("cumsum", dim=1), own=True),
    Difference(_negated, own=True, reads=(0, 1)),
    Difference(_restrided, own=True),
)
