"""One operator of a graph, and the element of its result that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import z3

from pytest_regional._torch.tracing import size_expression
from pytest_regional.verify import arithmetic as reals
from pytest_regional.verify import symbols
from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.sizes import from_sympy
from pytest_regional.verify.symbols import Expression, constant

Place = tuple[Expression, ...]
"""The index of an element: an integer for each axis."""


class Elements(Protocol):
    """A graph, whose elements are expressions.

    Attributes:
        assumed: what has to hold of indices for the operators to do anything but fail.
    """

    assumed: list[Expression]

    def element(self, node: torch.fx.Node, place: Place, part: int | None = None) -> Expression:
        """Return an element of a node's tensor, or of one of its tensors."""

    def reduced(self, kind: str, axes: Sequence[Expression], element: Callable[[Place], Expression]) -> Expression:
        """Return a constant for elements combined: ``axes`` are sizes, ``element`` tells one at a place of them."""


@dataclass(frozen=True)
class Call:
    """One operator of the graph, and the element of its result that is asked for."""

    region: Elements
    node: torch.fx.Node
    place: Place

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Return what the operator is given by position."""
        return tuple(self.node.args)

    def given(self, number: int, name: str, otherwise: Any = None) -> Any:
        """Return an argument by its position or name."""
        if len(self.node.args) > number:
            return self.node.args[number]
        return self.node.kwargs.get(name, otherwise)

    def operand(self, value: Any) -> Expression:
        """Return the element of an argument that belongs to this one, by the rules of broadcasting."""
        if isinstance(value, torch.fx.Node) and is_tensor(value):
            shape = shape_of(value)
            kept = self.place[len(self.place) - len(shape) :]
            place = tuple(z3.IntVal(0) if constant(size) == 1 else at for size, at in zip(shape, kept, strict=True))
            return self.region.element(value, place)
        return number_of(value)

    def size(self, value: Any) -> Expression:
        """Return an integer argument."""
        found = number_of(value)
        if not z3.is_int(found):
            raise NotVerifiableError(f"{self.node.target} with {value} for an integer")
        return found


def is_tensor(node: torch.fx.Node) -> bool:
    """Say whether a node's value is a tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def shape_of(node: torch.fx.Node) -> Place:
    """Return the sizes of a node's tensor."""
    return tuple(map(_size, node.meta["val"].shape))


def _size(value: Any) -> Expression:
    return from_sympy(size_expression(value)) if isinstance(value, torch.SymInt) else z3.IntVal(int(value))


def number_of(value: Any) -> Expression:
    """Return a number, or a symbolic size.

    Raises:
        NotVerifiableError: it is neither.
    """
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
    if isinstance(value, bool):
        return z3.BoolVal(value)
    if isinstance(value, (int, torch.SymInt)):
        return _size(value)
    if isinstance(value, float):
        return reals.real(value)
    raise NotVerifiableError(f"a {type(value).__name__} among the operands")


def of_type(value: Expression, dtype: torch.dtype) -> Expression:
    """Return a value as a type holds it; rounding is left out."""
    if dtype.is_complex:
        raise NotVerifiableError(f"{dtype}")
    if dtype == torch.bool:
        return reals.as_truth(value)
    return reals.as_real(value) if dtype.is_floating_point else reals.as_integer(value)


def wrapped_as(value: Expression, dtype: torch.dtype) -> Expression:
    """Return an integer as a type holds it."""
    return symbols.wrapped(value, dtype.itemsize * 8, dtype.is_signed)


def together(*values: Expression) -> list[Expression]:
    """Return values of one type, the widest of theirs."""
    if any(value.sort().eq(reals.REAL) for value in values):
        return list(map(reals.as_real, values))
    if all(map(z3.is_bool, values)):
        return list(values)
    return list(map(reals.as_integer, values))


def axis_of(number: int, rank: int) -> int:
    """Return the number of an axis, which may be counted from the end."""
    return number + rank if number < 0 else number


def source_of(call: Call) -> torch.fx.Node:
    """Return the tensor that a view is of."""
    found = call.arguments[0]
    if not isinstance(found, torch.fx.Node) or not is_tensor(found):
        raise NotVerifiableError(f"{call.node.target} of {found}")
    return found
