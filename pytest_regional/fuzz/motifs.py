"""Motifs: a few steps that rarely come together by chance, and that regional compilation gets wrong when they do.

Each is added to a program as it is, behind what was drawn, and reads a value of it; what does not fit is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pytest_regional.fuzz.building import Builder, Refused
from pytest_regional.fuzz.operators.table import operators
from pytest_regional.fuzz.program import Region, Scope, Step

ONE: Scope = (Region("one"),)
OTHER: Scope = (Region("other"),)
OUTSIDE: Scope = ()


@dataclass(frozen=True)
class Motif:
    """Steps that come together.

    Attributes:
        name: what is rare about them.
        steps: operand 0 is a value of the program; results, and operands that are results, count from -1 down.
        rank: how many dimensions that value has at least.
    """

    name: str
    steps: Sequence[Step]
    rank: int = 0

    @property
    def families(self) -> frozenset[str]:
        """The families of its operators."""
        return frozenset(operators()[step.operator].family for step in self.steps)


MOTIFS = (
    Motif(
        "a draw outside of a region, between two of it",
        (
            Step("rand_like", (0,), (), (-1,), ONE),
            Step("rand_like", (0,), (), (-2,), OUTSIDE),
            Step("rand_like", (0,), (), (-3,), ONE),
            Step("add", (-1, -3), (), (-4,), ONE),
        ),
    ),
    Motif(
        "a draw behind another operator of its region",
        (Step("sin", (0,), (), (-1,), ONE), Step("dropout", (-1,), (), (-2,), ONE)),
    ),
    Motif(
        "channels-last values are stacked in a region, and what leaves it is viewed",
        (
            Step("channels_last", (0,), (), (-1,), OUTSIDE),
            Step("stack", (-1, -1), (("dim", 0),), (-2,), ONE),
            Step("flatten", (-2,), (), (-3,), OUTSIDE),
        ),
        rank=4,
    ),
    Motif(
        "transposed values enter a region and leave it, and are viewed",
        (
            Step("matrix_transpose", (0,), (), (-1,), OUTSIDE),
            Step("atan", (-1,), (), (-2,), ONE),
            Step("matrix_transpose", (-2,), (), (-3,), OUTSIDE),
            Step("flatten", (-3,), (), (-4,), OUTSIDE),
        ),
        rank=2,
    ),
    Motif(
        "two regions that wait for each other",
        (
            Step("sin", (0,), (), (-1,), ONE),
            Step("cos", (0,), (), (-2,), OTHER),
            Step("mul", (-2, -1), (), (-3,), OTHER),
            Step("mul", (-1, -2), (), (-4,), ONE),
        ),
    ),
    Motif(
        "the same operator inside and outside",
        (
            Step("sin", (0,), (), (-1,), ONE),
            Step("sin", (0,), (), (-2,), OUTSIDE),
            Step("mul", (-1, -2), (), (-3,), OUTSIDE),
        ),
    ),
    Motif(
        "a number written into a slice in a region",
        (Step("clone", (0,), (), (-1,), ONE), Step("set_column_number", (-1,), (("index", 0),), (), ONE)),
        rank=1,
    ),
    Motif(
        "a write between two parts of a region",
        (
            Step("clone", (0,), (), (-1,), ONE),
            Step("mul_number_", (-1,), (("value", 0.5),), (), OUTSIDE),
            Step("sin", (-1,), (), (-2,), ONE),
        ),
    ),
    Motif(
        "a size that is an expression enters a region",
        (Step("cat_itself", (0,), (), (-1,), OUTSIDE), Step("sin", (-1,), (), (-2,), ONE)),
        rank=1,
    ),
    Motif(
        "a region feeds a region, with nothing between",
        (Step("sin", (0,), (), (-1,), ONE), Step("cos", (-1,), (), (-2,), OTHER)),
    ),
)


def add_motif(builder: Builder, choice: int, families: Collection[str] | None = None) -> None:
    """Add a motif; nothing, or its first steps, where it does not fit.

    Args:
        builder: a program under construction.
        choice: which one, and which value it reads.
        families: the families of operators that the program may hold; all where None.
    """
    motif = MOTIFS[choice % len(MOTIFS)]
    if families is not None and not motif.families <= frozenset(families):
        return
    values = [value.number for value in builder.values.values() if value.is_float and value.rank >= motif.rank]
    if not values:
        return
    numbers = {0: values[choice // len(MOTIFS) % len(values)]}
    try:
        for step in motif.steps:
            operands = tuple(numbers[number] for number in step.operands)
            added = builder.add(replace(step, operands=operands, results=()))
            numbers |= dict(zip(step.results, added.results, strict=True))
    except Refused:
        return


__all__ = ["MOTIFS", "Motif", "add_motif"]
