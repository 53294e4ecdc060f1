"""Candidates for smaller programs: any edit of a program, rebuilt into a program."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_regional.fuzz.model.arguments import CONTENT_SOURCES, LAYOUTS, PARTS, TensorInput
from pytest_regional.fuzz.model.building import Builder, Refused
from pytest_regional.fuzz.model.evaluation import REFUSALS
from pytest_regional.fuzz.model.program import Block, Program, Region, Step
from pytest_regional.fuzz.operators.operator import Picks
from pytest_regional.fuzz.operators.table import operator_named, operators
from pytest_regional.fuzz.settings import ProgramSetting

if TYPE_CHECKING:
    from pytest_regional.fuzz.operators.operator import ProgramValue


@dataclass(frozen=True)
class Candidate:
    """The parts of a program that may not fit together. A step in ``dropped`` is left out and its users rewired."""

    arguments: tuple[TensorInput, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    blocks: tuple[Block, ...]
    training: bool
    dynamic: bool | None
    partitioner: str | None
    settings: tuple[ProgramSetting, ...] = ()
    dropped: frozenset[int] = frozenset()

    @classmethod
    def of(cls, program: Program) -> Candidate:
        """Return the candidate that changes nothing."""
        return cls(
            program.arguments,
            program.steps,
            program.outputs,
            program.blocks,
            program.training,
            program.dynamic,
            program.partitioner,
            program.settings,
        )


def rebuild(candidate: Candidate, original: Program, *, elements: int | None = None) -> Program | None:
    """Return the program that ``candidate``, an edit of ``original``, comes to; None where none can be built.

    Steps that would make more than ``elements`` elements together do not fit.

    Who read a value that is no longer made reads another one of its shape and dtype: an operand of the step that made
    it, or else the earliest there is. A step that then does not fit is tried with its simplest parameters.
    """
    try:
        builder = Builder(candidate.arguments, candidate.blocks, elements=elements)
    except REFUSALS:
        return None  # an edited argument that has no such layout or alias
    before = _values_of(original)
    substitutes: dict[int, int] = {}
    for position, step in enumerate(candidate.steps):
        rewired = replace(step, operands=tuple(substitutes.get(number, number) for number in step.operands))
        if position in candidate.dropped or not _add(builder, rewired):
            for number in step.results:
                substitutes.update(_substitute(builder, number, rewired, before))
    outputs = dict.fromkeys(range(len(candidate.outputs)))
    made = [substitutes.get(candidate.outputs[position], candidate.outputs[position]) for position in outputs]
    kept = [number for number in made if number in builder.values]
    if not kept or builder.unused_random_values(kept) or (candidate.training and not builder.backpropagates(kept)):
        return None
    built = builder.program(kept, training=candidate.training, dynamic=candidate.dynamic)
    return replace(built, partitioner=candidate.partitioner, settings=candidate.settings)


@functools.lru_cache(maxsize=4)
def _values_of(program: Program) -> Mapping[int, ProgramValue]:
    builder = Builder(program.arguments, program.blocks)
    for step in program.steps:
        builder.add(step)
    return builder.values


def _add(builder: Builder, step: Step) -> bool:
    return _fits(builder, step) or _fits(builder, _with_simplest_parameters(builder, step))


def _fits(builder: Builder, step: Step | None) -> bool:
    if step is None:
        return False
    try:
        builder.add(step)
    except Refused:
        return False
    return True


def _with_simplest_parameters(builder: Builder, step: Step) -> Step | None:
    operator = operator_named(step.operator)
    if not step.parameters or not all(number in builder.values for number in step.operands):
        return None
    parameters = builder.parameters(operator, step.operands, Picks(()))
    return None if parameters is None else replace(step, parameters=parameters)


def _substitute(builder: Builder, number: int, step: Step, before: Mapping[int, ProgramValue]) -> dict[int, int]:
    """Map ``number``, which ``step`` would have made, to a value of the same shape and dtype, if there is one."""
    wanted = before.get(number)
    for other in (*step.operands, *builder.values):
        value = builder.values.get(other)
        if wanted and value and (value.shape, value.dtype) == (wanted.shape, wanted.dtype):
            return {number: other}
    return {}


# What is simpler


def cost(program: Program) -> tuple[float, ...]:
    """Return what grows with every complication, the weightiest first."""
    steps = tuple(program.all_steps())
    contexts = [context for step in steps for context in step.scope]
    regions = dict.fromkeys(context for context in contexts if isinstance(context, Region))
    return (
        len(steps),
        len(program.blocks),
        len(program.arguments),
        len(contexts) + sum(len(region.configs) + len(region.after) for region in regions),
        len(regions),
        len(program.outputs),
        sum(_argument_cost(argument) for argument in program.arguments),
        program.training + (program.dynamic is not None) + (program.partitioner is not None) + len(program.settings),
        sum(_places()[step.operator] for step in steps),
        sum(map(len, _switches(program))),
        sum(_weight(value) for step in steps for _, value in step.parameters),
        sum(_name_cost(region) for region in regions),
        sum(number for step in steps for number in step.operands),
    )


def _switches(program: Program) -> list[list[int]]:
    """Return where a context begins that the step before does not stand in."""
    steps = program.steps
    return [
        [depth for depth, context in enumerate(step.scope) if context not in before.scope[depth : depth + 1]]
        for before, step in zip((Step(""), *steps), steps, strict=False)
    ]


@functools.cache
def _places() -> dict[str, int]:
    return {name: place for place, name in enumerate(operators())}


def _argument_cost(argument: TensorInput) -> float:
    return (
        100 * (argument.dtype != "float32")
        + 50 * LAYOUTS.index(argument.layout)
        + 50 * list(CONTENT_SOURCES).index(argument.content)
        + 50 * (argument.alias_of is not None)
        + 5 * PARTS.index(argument.part)
        + 10 * argument.detached
        + 50 * len(argument.dynamic)
        + 20 * argument.requires_grad
        + 2 * len(argument.shape)
        + min(math.prod(argument.shape), 10_000) / 1_000
    )


def _weight(value: object) -> float:
    if isinstance(value, tuple):
        return sum(map(_weight, value)) + len(value)
    if value is None:
        return 0.0
    return min(abs(float(value)), 100.0) if isinstance(value, (bool, int, float)) else 1.0


def _name_cost(region: Region) -> int:
    return sum(map(ord, str(region.name))) if region.name is not None else 1


__all__ = ["Candidate", "cost", "rebuild"]
