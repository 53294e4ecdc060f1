"""What another launch computed, in the scope of one that reads it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import z3

from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.symbols import Expression, Reduction, Scope, symbols_of


class Computed(Protocol):
    """What another launch computes."""

    @property
    def scope(self) -> Scope:
        """Return its variables."""

    def reductions_in(self, expression: Expression) -> list[Expression]:
        """Return what it has combined and a value depends on, the outermost."""

    def flat(self, expression: Expression) -> Reduction:
        """Return a reduction with variables of its own, its element as real numbers."""


class Adopted:
    """Takes what another kernel computes into the scope of this one, as a function of one variable, its address.

    Attributes:
        scope: of this kernel.
        reductions: where reductions of the other one are put, with new names.
        place: the variable.
    """

    def __init__(self, scope: Scope, reductions: dict[str, Reduction], place: Expression) -> None:
        self.scope = scope
        self.reductions = reductions
        self.place = place
        self._numbers = itertools.count()

    def value(self, other: Computed, value: Expression) -> Expression:
        """Return a value that ``other`` computes.

        Raises:
            NotVerifiableError: it depends on more than the address.
        """
        pairs = [(part, self._reduction(other, part)) for part in other.reductions_in(value)]
        found = z3.substitute(value, *pairs) if pairs else value
        self._check(found, ())
        return found

    def _reduction(self, other: Computed, expression: Expression) -> Expression:
        theirs = other.flat(expression)
        if theirs.place is not None:
            raise NotVerifiableError(f"a part of the work that is the {theirs.kind}")
        scope, outer = self.scope, other.scope
        pairs = []
        for variable in theirs.bound:
            _, low, high = outer.bounds[variable.decl().name()]
            pairs.append((variable, scope.variable("part", low, high)))
        # Sums of two variables that the other kernel has a name for need one here.
        names = symbols_of([theirs.element])
        for name, index in outer.indices.items():
            own = {a.decl().name(): b for a, b in pairs}
            base, lane = index.base.decl().name(), index.lane.decl().name()
            if name in names and base in own and lane in own:
                pairs.append((names[name], scope.index(own[base], own[lane])))
        element = z3.substitute(theirs.element, *pairs) if pairs else theirs.element
        bound = tuple(b for _, b in pairs[: len(theirs.bound)])
        inner = [(part, self._reduction(other, part)) for part in other.reductions_in(element)]
        element = z3.substitute(element, *inner) if inner else element
        self._check(element, bound)
        name = f"combined part#{len(self.reductions)}"
        self.reductions[name] = Reduction(theirs.kind, (self.place,), bound, element)
        return z3.Function(name, z3.IntSort(), element.sort())(self.place)

    def _check(self, expression: Expression, bound: Sequence[Expression]) -> None:
        allowed = {self.place.decl().name(), *(variable.decl().name() for variable in bound)}
        for name in symbols_of([expression]):
            index = self.scope.indices.get(name)
            parts = {name} if index is None else {index.base.decl().name(), index.lane.decl().name()}
            if "#" in name and name not in allowed and not parts <= allowed:
                raise NotVerifiableError("a part of the work that depends on more than where it is written")
