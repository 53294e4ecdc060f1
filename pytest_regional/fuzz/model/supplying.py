"""Make the operand that an operator needs where no value of a program suits: a few steps behind one that is there.

Most operators want little of their operands. Those that want more (probabilities, classes for each row, a vector for
each channel, a tensor that may be written to) would meet it by chance in one program of thousands.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_regional.fuzz.model.building import Builder, Refused
from pytest_regional.fuzz.model.program import Region, Scope, Step
from pytest_regional.fuzz.operators.operator import Operator, ProgramValue, Wanted

_ROW = Step("select", parameters=(("dim", 0), ("index", 0)))
_COLUMN = Step("select", parameters=(("dim", 1), ("index", 0)))
_LONGER = Step("unsqueeze", parameters=(("dim", 0),))

#: Steps to other sizes: without, of one row, of two, of one element of each row, of each channel, of more dimensions.
_SIZES: tuple[tuple[Step, ...], ...] = (
    (),
    (_ROW,),
    (Step("narrow", parameters=(("dim", 0), ("start", 0), ("length", 2))),),
    (_COLUMN,),
    (_COLUMN, _COLUMN),
    (_COLUMN, _COLUMN, _COLUMN),
    (_ROW, _COLUMN),
    (_ROW, _COLUMN, _COLUMN),
    (_LONGER,),
    (_LONGER, _LONGER),
)

#: Steps to other values, each with the place of the one that it stands behind; -1 is the value as it is.
_VALUES: tuple[tuple[int, Step], ...] = (
    (-1, Step("detach")),
    (-1, Step("clone")),
    (0, Step("clone")),
    # Between 1/4 and 3/4
    (-1, Step("tanh")),
    (3, Step("mul_number", parameters=(("value", 0.25),))),
    (4, Step("add_number", parameters=(("value", 0.5),))),
    (5, Step("detach")),
    (6, Step("clone")),
    # From 2 upward
    (-1, Step("square")),
    (8, Step("add_number", parameters=(("value", 2.0),))),
    (9, Step("detach")),
    (10, Step("clone")),
    # Truth values, 0 and 1, -1 to 1, bytes
    (-1, Step("gt_number", parameters=(("value", 0.0),))),
    (12, Step("to_int64")),
    (-1, Step("sign")),
    (14, Step("to_int64")),
    (14, Step("detach")),
    (14, Step("to_int8")),
    # Two places
    (-1, Step("literal_index")),
)

#: How many values of the program are tried, the newest first.
_SOURCES = 2


def operands_supplied(
    builder: Builder, operator: Operator, references: Sequence[int], scope: Scope
) -> list[ProgramValue] | None:
    """Return operands for ``operator``, made where none is there; None, and nothing added, where that does not help.

    Args:
        builder: a program under construction.
        operator: what the operands are for.
        references: for each operand, how many suitable values to go back from the newest; taken modulo.
        scope: where the operator is to stand; what is made stands in its regions.
    """
    mark = len(builder.steps)
    regions = tuple(context for context in scope if isinstance(context, Region))
    chosen: list[ProgramValue] = []
    for position in range(len(operator.operands)):
        found = builder.suitable(operator, chosen)
        value = found[references[position] % len(found)] if found else _made(builder, operator, chosen, regions)
        if value is None:
            builder.take_back(mark)
            return None
        chosen.append(value)
    return chosen


def _made(builder: Builder, operator: Operator, before: Sequence[ProgramValue], scope: Scope) -> ProgramValue | None:
    mark = len(builder.steps)
    wanted = operator.operands[len(before)]
    newest = [value for value in reversed(builder.values.values()) if value.is_float][:_SOURCES]
    for source in before or newest:
        for sizes in _SIZES:
            steps = _steps_to(builder, wanted, before, source, sizes, scope)
            builder.take_back(mark)
            if steps is not None:
                return _behind(builder, source, steps, scope)
    return None


def _steps_to(
    builder: Builder,
    wanted: Wanted,
    before: Sequence[ProgramValue],
    source: ProgramValue,
    sizes: Sequence[Step],
    scope: Scope,
) -> Sequence[Step] | None:
    """Return the first steps behind ``source`` to what is wanted, through others that it leaves in the program."""
    sized = _behind(builder, source, sizes, scope)
    if sized is None or (sizes and wanted(sized, *before)):
        return None if sized is None else sizes
    found: dict[int, tuple[ProgramValue, tuple[Step, ...]]] = {-1: (sized, tuple(sizes))}
    for place, (parent, step) in enumerate(_VALUES):
        if parent not in found:
            continue
        value, steps = found[parent]
        made = _behind(builder, value, (step,), scope)
        if made is not None:
            found[place] = made, (*steps, step)
            if wanted(made, *before):
                return found[place][1]
    return None


def _behind(builder: Builder, source: ProgramValue, steps: Sequence[Step], scope: Scope) -> ProgramValue | None:
    number = source.number
    for step in steps:
        try:
            added = builder.add(Step(step.operator, (number,), step.parameters, (), scope))
        except Refused:
            return None
        number = added.results[0]
    return builder.values[number]


__all__ = ["operands_supplied"]
