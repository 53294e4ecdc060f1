"""From rows of small integers to a program: the layout that lets Hypothesis shrink.

Every node of a program is one row, and every row has the same number of integers whatever its operator is, so that
taking a row away, or making an integer smaller, leaves the meaning of all others alone. References are relative and
taken modulo what fits; a row that fits nothing is skipped, not rejected. Zero always means the simplest.
(Measured before this was built, on one seeded bug: size first with absolute references gave the minimal program in 0 of
16 runs, rows in 7 of 16, rows and a reducer that knows graphs in 16 of 16.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_regional.fuzz.arguments import FLOATS, LAYOUTS, TensorInput
from pytest_regional.fuzz.building import Builder
from pytest_regional.fuzz.operators.operator import Operator
from pytest_regional.fuzz.operators.table import operators
from pytest_regional.fuzz.program import Program, Region, Scope

SHAPES: tuple[tuple[int, ...], ...] = ((4,), (2, 3), (4, 4), (1, 4), (2, 3, 4), (), (8, 8), (1,), (2, 4, 1))

SCOPES: tuple[Scope, ...] = (
    (),
    (Region("a"),),
    (Region("b"),),
    (Region("c"),),
    (Region("a"), Region("b")),
    (Region("a", (("max_fusion_size", 8),)),),
    (Region(None),),
)


@dataclass(frozen=True)
class ArgumentRow:
    """One input, as integers."""

    shape: int = 0
    dtype: int = 0
    layout: int = 0
    content: int = 0
    gradient: int = 0


@dataclass(frozen=True)
class StepRow:
    """One step, as integers."""

    operator: int = 0
    references: tuple[int, int, int, int] = (0, 0, 0, 0)
    numbers: tuple[int, int, int] = (0, 0, 0)
    scope: int = 0
    returned: int = 0


def argument_of(row: ArgumentRow) -> TensorInput:
    """Return the input that ``row`` describes."""
    return TensorInput(
        SHAPES[row.shape % len(SHAPES)],
        FLOATS[row.dtype % len(FLOATS)],
        LAYOUTS[row.layout % len(LAYOUTS)],
        ("signed", "positive", "distinct")[row.content % 3],
        bool(row.gradient % 2),
    )


def program_of(
    arguments: Sequence[ArgumentRow], rows: Sequence[StepRow], allowed: Sequence[Operator] | None = None
) -> Program:
    """Return the program that the rows describe; rows that fit nothing are left out."""
    table = tuple(operators().values()) if allowed is None else tuple(allowed)
    builder = Builder(tuple(map(argument_of, arguments)))
    returned: list[int] = []
    for row in rows:
        scope = SCOPES[row.scope % len(SCOPES)]
        step = builder.choose(table[row.operator % len(table)], row.references, row.numbers, scope)
        if step is not None and row.returned % 4 == 1:
            returned.extend(step.results)
    used = {number for step in builder.steps for number in step.operands}
    made = [number for step in builder.steps for number in step.results]
    outputs = [number for number in made if number not in used or number in returned]
    return builder.program(outputs)
