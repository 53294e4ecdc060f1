"""What a ``tl.tensor`` holds while a kernel runs on symbols: an expression for one element, whichever it is.

A block's element is an expression over one variable for each axis, its lane. Blocks whose elements do not differ along
an axis have no lane there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import triton.language as tl
import z3

from pytest_regional._torch.triton import kernel_type
from pytest_regional.emulation.interpreter.builder import builder
from pytest_regional.verify.outcomes import NotVerifiableError
from pytest_regional.verify.symbols import FLOAT, INTEGER, TRUTH, Expression, constant, limits

Lanes = tuple[Expression | None, ...]


class Symbol:
    """Stands for the class of handles of Triton's interpreter: one element of a block, and the block's lanes.

    Attributes:
        expression: the element; of a pointer how many elements lie between ``argument`` and what it points to.
        shape: sizes of the axes, none for a scalar.
        lanes: a variable for each axis along which elements differ.
        dtype: Triton's type of an element.
        argument: the argument of the kernel that a pointer was computed from.
    """

    __slots__ = ("argument", "dtype", "expression", "lanes", "shape")

    def __init__(
        self, expression: Expression, dtype: Any, shape: Sequence[int] = (), lanes: Lanes = (), argument: Any = None
    ) -> None:
        self.expression = expression
        self.dtype = dtype
        self.shape = tuple(shape)
        self.lanes = tuple(lanes) if lanes else (None,) * len(self.shape)
        self.argument = argument

    # What the interpreter asks of an array.

    @property
    def data(self) -> Symbol:
        """Return itself."""
        return self

    @property
    def size(self) -> int:
        """Return how many elements there are."""
        return math.prod(self.shape)

    def item(self) -> int | bool:
        """Return the number that this is, or the truth value that is tried now.

        Raises:
            NotVerifiableError: it is a number, and stands for several.
        """
        if self.dtype.scalar.name == "int1":
            return bool(builder().decide(self.expression))
        found = constant(z3.simplify(self.expression)) if self.dtype.scalar.is_int() else None
        if found is None:
            raise NotVerifiableError(f"Python needs the number {str(self.expression)[:80]}, which is not constant")
        return found

    def get_element_ty(self) -> Any:
        """Return the type of an element, of a pointer what it points to."""
        found = self.dtype
        while hasattr(found, "element_ty"):
            found = found.element_ty
        return found

    def set_attr(self, key: str, value: Any) -> None:
        """Ignore a promise made to the compiler."""

    def like(self, expression: Expression, dtype: Any = None) -> Symbol:
        """Return another element of the same block."""
        return Symbol(expression, dtype or self.dtype, self.shape, self.lanes, self.argument)


def sort_of(scalar: Any) -> Any:
    """Return what z3 calls the values of one of Triton's types."""
    if scalar.is_ptr():
        return INTEGER
    if scalar.name == "int1":
        return TRUTH
    return INTEGER if scalar.is_int() else FLOAT


def range_of(scalar: Any) -> tuple[int, int] | None:
    """Return the limits of an integer type, or None for any other."""
    if scalar.is_ptr() or scalar.name == "int1" or not scalar.is_int():
        return None
    return limits(scalar.int_bitwidth, scalar.is_int_signed())


def limits_of_type(name: str) -> tuple[int, int] | None:
    """Return the limits of a type as signatures name it, or None if it is no integer."""
    return None if name == "constexpr" else range_of(kernel_type(name).scalar)


def number(value: Any, scalar: Any) -> Expression:
    """Return a constant of one of Triton's types."""
    if scalar.name == "int1":
        return z3.BoolVal(bool(value))
    if scalar.is_int():
        return z3.IntVal(int(value))
    return z3.Const(f"float {float(value)!r}", FLOAT)


def scalar_tensor(symbol: Symbol) -> Any:
    """Return a ``tl.tensor`` of a scalar, or of a block if it has a shape."""
    kind = symbol.dtype if not symbol.shape else tl.block_type(symbol.dtype.scalar, list(symbol.shape))
    return tl.core.tensor(symbol, kind)
