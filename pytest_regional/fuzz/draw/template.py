"""What a template is: steps that rarely come together by chance, some with alternatives, in alternative scopes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_regional.fuzz.model.program import Region, Scope, Step
from pytest_regional.fuzz.operators.table import operators

ONE: Scope = (Region("one"),)
OTHER: Scope = (Region("other"),)
OUTSIDE: Scope = ()


@dataclass(frozen=True)
class Template:
    """Steps that come together.

    Attributes:
        name: what is rare about them.
        slots: steps, or tuples of alternatives for one, the simplest first; None leaves it out, and its first operand
            stands for its result. Operand 0 is a value of the program; results, and operands that are results, count
            from -1 down.
        rank: how many dimensions that value has at least.
        most: how many it has at most.
        scopes: what its steps stand in besides their own contexts: alternatives, each for the first, third, ... and for
            the second, fourth, ... step.
        weight: how many times as often as others it is drawn.
        shared: whether that value is an input that lies in the memory of another input, and that wants no gradient.
    """

    name: str
    slots: Sequence[Step | tuple[Step | None, ...]]
    rank: int = 0
    most: int = 8
    scopes: tuple[tuple[Scope, Scope], ...] = ((OUTSIDE, OUTSIDE),)
    weight: int = 1
    shared: bool = False

    @property
    def families(self) -> frozenset[str]:
        """The families of its operators, all alternatives included."""
        steps = (step for slot in self.slots for step in _alternatives(slot) if step is not None)
        return frozenset(operators()[step.operator].family for step in steps)

    @property
    def variations(self) -> int:
        """How many ways there are to choose among the alternatives."""
        return math.prod(len(_alternatives(slot)) for slot in self.slots) * len(self.scopes)

    def steps(self, variation: int = 0) -> list[Step]:
        """Return the steps that a number chooses, modulo :attr:`variations`; what is left out has no step."""
        made, renamed = list[Step](), dict[int, int]()
        variation, place = divmod(variation, len(self.scopes))
        scopes = self.scopes[place]
        for slot in self.slots:
            alternatives = _alternatives(slot)
            variation, place = divmod(variation, len(alternatives))
            step = alternatives[place]
            if step is not None:
                operands = tuple(renamed.get(number, number) for number in step.operands)
                made.append(replace(step, operands=operands, scope=(*step.scope, *scopes[len(made) % 2])))
                continue
            left_out = next(one for one in alternatives if one is not None)
            renamed[left_out.results[0]] = renamed.get(left_out.operands[0], left_out.operands[0])
        return made


def _alternatives(slot: Step | tuple[Step | None, ...]) -> tuple[Step | None, ...]:
    return slot if isinstance(slot, tuple) else (slot,)


__all__ = ["ONE", "OTHER", "OUTSIDE", "Template"]
