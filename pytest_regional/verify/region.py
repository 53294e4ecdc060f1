"""What a graph of PyTorch's operators computes: one element of any of its tensors, as an expression of its index."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import z3

from pytest_regional._torch.operators import schema_of
from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.operators import MEANINGS, SEVERAL
from pytest_regional.verify.operators.calls import Call, Place, of_type
from pytest_regional.verify.symbols import EXTREMES, Expression, Reduction

Held = Callable[[torch.fx.Node, Place], Expression | None]
"""Returns what memory holds of a node's tensor at a place, or None where it is in no memory."""


class Region:
    """A graph, whose elements are expressions.

    Attributes:
        held: what memory holds.
        reductions: what the constants were computed from that stand for sums and the like, by name.
        bounds: the size of the axis that a variable of those counts, by its name.
        assumed: what has to hold of indices for the operators to do anything but fail.
    """

    def __init__(self, held: Held) -> None:
        self.held = held
        self.reductions: dict[str, Reduction] = {}
        self.bounds: dict[str, Expression] = {}
        self.assumed: list[Expression] = []
        self._known: dict[tuple[Any, ...], tuple[Place, Expression]] = {}
        self._numbers = itertools.count()

    def element(self, node: torch.fx.Node, place: Place, part: int | None = None) -> Expression:
        """Return an element of a node's tensor.

        Args:
            node: the node.
            place: the index of the element.
            part: which of several tensors, where the node has several.

        Raises:
            NotVerifiableError: an operator is not known here.
        """
        key = (node.name, part, *(at.get_id() for at in place))
        found = self._known.get(key)
        if found is None:
            value = self.held(node, place) if part is None else None
            found = self._known[key] = place, self._computed(node, place, part) if value is None else value
        return found[1]

    def _computed(self, node: torch.fx.Node, place: Place, part: int | None) -> Expression:
        if node.target is operator.getitem:
            source, number = node.args
            if not isinstance(source, torch.fx.Node) or not isinstance(number, int):
                raise NotVerifiableError(f"a part of {source}")
            return self.element(source, place, number)
        schema = schema_of(node.target) if node.op == "call_function" else None
        name = schema.name if schema is not None else str(node.target)
        call = Call(self, node, place)
        if part is not None:
            several = SEVERAL.get(name)
            if several is None:
                raise NotVerifiableError(f"{name}, whose meaning is not known here")
            return several(call, part)
        meaning = MEANINGS.get(name)
        if meaning is None:
            raise NotVerifiableError(f"{name}, whose meaning is not known here")
        return of_type(meaning(call), node.meta["val"].dtype)

    def reduced(self, kind: str, axes: Sequence[Expression], element: Callable[[Place], Expression]) -> Expression:
        """Return a constant for elements combined: ``axes`` are sizes, ``element`` tells one at a place of them."""
        number = next(self._numbers)
        bound = tuple(z3.Int(f"place{number} {axis}#") for axis in range(len(axes)))
        self.bounds.update({variable.decl().name(): size for variable, size in zip(bound, axes, strict=True)})
        one = element(bound)
        name = f"combined#{number}"
        if kind not in EXTREMES:
            self.reductions[name] = Reduction(kind, (), bound, one)
            return z3.Const(name, one.sort())
        place: Expression = z3.IntVal(0)
        for variable, size in zip(bound, axes, strict=True):
            place = place * size + variable
        self.reductions[name] = Reduction(kind, (), bound, one, z3.simplify(place))
        return z3.Int(name)
