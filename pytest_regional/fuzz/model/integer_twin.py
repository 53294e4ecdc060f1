"""The integer twin of a program: the same structure on small integers, where every correct order gives the same bits.

Operators, regions, scopes, layouts, aliases and the training stay. Floating-point inputs hold small integers, and an
operator that rounds (``exp``, ``softmax``, a division) is exchanged for one that takes as many operands, writes to the
same ones, makes results of the same sizes and dtypes, and is exact. Ranges of values say which results are; where no
operator fits, the step stays, and what is computed from its results is rounded.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_regional._errors import RegionalError
from pytest_regional.fuzz.model.arguments import FLOATS, TensorInput
from pytest_regional.fuzz.model.building import Builder, Refused
from pytest_regional.fuzz.model.evaluation import touched
from pytest_regional.fuzz.model.program import Block, Parameter, Program, Step, renumbered
from pytest_regional.fuzz.model.value_range import ValueRange
from pytest_regional.fuzz.operators.operator import Operator, Picks, ProgramValue
from pytest_regional.fuzz.operators.table import operator_named, operators


class NoTwinError(RegionalError):
    """A program has no integer twin; the message says why."""


@dataclass(frozen=True)
class IntegerTwin:
    """A program of small integers.

    Attributes:
        program: the twin; its values have the numbers of the program's.
        value_ranges: what holds of its values at the end, by number.
        rounded: operators of the program whose results are rounded in the twin as well.
    """

    program: Program
    value_ranges: dict[int, ValueRange]
    rounded: tuple[str, ...] = ()


#: What stands in for an operator, by how many operands it takes and results it makes: first what keeps values small.
_STAND_INS: dict[tuple[int, int], tuple[str, ...]] = {
    (1, 1): ("hardtanh", "neg", "abs", "relu", "clone", "sum", "amax", "cumsum", "sum_dims", "sum_all", "sum_float64"),
    (2, 1): ("minimum", "maximum", "sub", "add", "mul", "add_mixed", "matmul", "mm", "mm_transposed", "bmm", "dot"),
    (1, 2): ("aminmax",),
    (1, 0): ("relu_", "aten_neg_", "aten_abs_", "aten_hardtanh_"),
    (2, 0): ("sub_", "add_", "copy_"),
}

#: How many of them keep the operand's sizes, and take turns; and how many operators are tried at most.
_SMALL, _MOST = 4, 32


def integer_twin(program: Program) -> IntegerTwin:
    """Return the integer twin of ``program``, renumbered.

    Raises:
        NoTwinError: there is none.
    """
    program = renumbered(program)
    original = Builder(program.arguments, program.blocks)
    try:
        for step in program.steps:
            original.add(step)
    except Refused as why:
        raise NoTwinError(f"the program cannot be built again: {why.reason}") from why
    builder = Builder(_integral(program.arguments), tuple(map(_twin_of_block, program.blocks)))
    rounded = []
    for step in program.steps:
        builder, exact = _with_twin_of(builder, step, [original.values.get(number) for number in step.results])
        if not exact:
            rounded.append(step.operator)
    if any(number not in builder.values for number in program.outputs):
        raise NoTwinError("a write of the twin takes an output away")
    if program.trains and not builder.backpropagates(program.outputs):
        raise NoTwinError("eager refuses the backward of the twin")
    twin = replace(program, arguments=builder.arguments, steps=tuple(builder.steps), blocks=builder.blocks)
    ranges = {number: value.value_range for number, value in builder.values.items()}
    return IntegerTwin(twin, ranges, tuple(dict.fromkeys(rounded)))


def _integral(arguments: Sequence[TensorInput]) -> tuple[TensorInput, ...]:
    made: list[TensorInput] = []
    for argument in arguments:
        if argument.alias_of is not None:
            made.append(replace(argument, content=made[argument.alias_of].content))
        elif argument.dtype not in FLOATS:
            made.append(argument)
        else:
            places = replace(argument, content="places")
            distinct = argument.content == "distinct" and places.value_range.settled(argument.dtype).exact
            made.append(places if distinct else replace(argument, content="whole"))
    return tuple(made)


def _twin_of_block(block: Block) -> Block:
    """Return the twin of a block: it is called with any shape, and exact on matrices of small integers at least."""
    builder = Builder([TensorInput((4, 4), content="whole")] * len(block.parameters))
    matrix = builder.values[0]
    for step in block.steps:
        builder, _ = _with_twin_of(builder, step, [matrix], elementwise=True)
    return replace(block, steps=tuple(builder.steps))


def _with_twin_of(
    builder: Builder, step: Step, made: Sequence[ProgramValue | None], *, elementwise: bool = False
) -> tuple[Builder, bool]:
    """Add the twin of ``step``; return the builder then, and whether all that it makes and writes to is exact.

    Args:
        builder: the twin so far.
        step: of the program.
        made: its results in the program, None for those that later writes took away.
        elementwise: whether only operators that work element by element may stand in for it.

    Raises:
        NoTwinError: neither the step nor another one fits.
    """
    fallback = None
    for candidate in _candidates(builder, step, elementwise=elementwise):
        try:
            builder.add(candidate)
        except Refused:
            continue
        if _alike(builder, candidate, made):
            if _exact(builder, candidate):
                return builder, True
            fallback = fallback or candidate
        builder = _without_last(builder)
    if fallback is None:
        raise NoTwinError(f"nothing stands in for {step.operator}")
    builder.add(fallback)
    return builder, False


def _without_last(builder: Builder) -> Builder:
    again = Builder(builder.arguments, builder.blocks)
    for step in builder.steps[:-1]:
        again.add(step)
    return again


def _alike(builder: Builder, step: Step, made: Sequence[ProgramValue | None]) -> bool:
    """Tell whether the results of ``step`` are like those of the program's: in sizes, dtype, and the gradient."""
    ours = [builder.values[number] for number in step.results]
    return all(
        other is None
        or value.unbacked
        or (value.shape, value.dtype, value.requires_grad) == (other.shape, other.dtype, other.requires_grad)
        for value, other in zip(ours, made, strict=True)
    )


def _exact(builder: Builder, step: Step) -> bool:
    return all(builder.values[number].value_range.exact for number in touched(step) if number in builder.values)


def _candidates(builder: Builder, step: Step, *, elementwise: bool) -> Iterator[Step]:
    """Yield the step itself, and those that may stand in for it."""
    operator = operator_named(step.operator)
    yield step
    if operator.calls or operator.uses_rng or operator.unbacked or not operator.operands:
        return
    for other in _stand_ins(operator.name):
        if elementwise and not other.elementwise:
            continue
        parameters = _parameters(builder, step, other)
        if parameters is not None:
            yield replace(step, operator=other.name, parameters=parameters)


@functools.cache
def _stand_ins(name: str) -> tuple[Operator, ...]:
    """Return operators that take, make and write to as much: those that the table above names, then relatives."""
    operator = operator_named(name)
    named = [one for one in _STAND_INS.get((len(operator.operands), operator.results), ()) if one in operators()]
    turn = zlib.crc32(name.encode())
    first = named[:_SMALL] if operator.results else named
    first = first[turn % len(first) :] + first[: turn % len(first)] if first else []
    others = [one.name for one in operators().values() if one.family == operator.family]
    others = others[turn % len(others) :] + others[: turn % len(others)]
    found = (operator_named(one) for one in dict.fromkeys((*first, *named, *others)) if one != name)
    return tuple(itertools.islice((one for one in found if _as_many(one, operator)), _MOST))


def _as_many(one: Operator, other: Operator) -> bool:
    return (
        (len(one.operands), one.results, one.writes) == (len(other.operands), other.results, other.writes)
        and not (one.calls or one.uses_rng or one.unbacked)
        and one.sealed == other.sealed
    )


def _parameters(builder: Builder, step: Step, other: Operator) -> tuple[tuple[str, Parameter], ...] | None:
    """Return parameters for ``other``: those of the step, where it has the same, else the simplest."""
    if other.parameter_names == operator_named(step.operator).parameter_names:
        return step.parameters
    if any(number not in builder.values for number in step.operands):
        return None
    return builder.parameters(other, step.operands, Picks(()))


__all__ = ["IntegerTwin", "NoTwinError", "integer_twin"]
