"""Sizes of a graph: Python integers that stand for all values that its guards allow."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import z3

from pytest_regional.verify.outcomes import NotVerifiableError
from pytest_regional.verify.symbols import Expression, constant, floored_quotient, floored_remainder, limits

Compare = Callable[[Any, Any], Any]


def expression_of(value: Any) -> Expression:
    """Return what an integer of Python, or a :class:`Size`, is for z3.

    Raises:
        NotVerifiableError: it is neither.
    """
    if isinstance(value, Size):
        return value.expression
    if isinstance(value, int):
        return z3.IntVal(int(value))
    raise NotVerifiableError(f"a size that is {type(value).__name__}")


Decide = Callable[[Expression], bool]


class Size:
    """An integer, or a truth value, of the code that launches kernels.

    Attributes:
        expression: what it is for z3.
        decide: says whether a condition holds, or raises :class:`NotVerifiableError`.
    """

    def __init__(self, expression: Expression, decide: Decide | None = None) -> None:
        self.expression = expression
        self.decide = decide

    def _with(self, other: Any, compute: Compare, swapped: bool = False) -> Any:
        if not isinstance(other, (int, Size)):
            return NotImplemented
        left, right = self.expression, expression_of(other)
        decide = self.decide or getattr(other, "decide", None)
        return Size(compute(right, left) if swapped else compute(left, right), decide)

    def __add__(self, other: Any) -> Any:
        return self._with(other, operator.add)

    def __radd__(self, other: Any) -> Any:
        return self._with(other, operator.add, swapped=True)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, operator.sub, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, operator.mul)

    def __rmul__(self, other: Any) -> Any:
        return self._with(other, operator.mul, swapped=True)

    def __floordiv__(self, other: Any) -> Any:
        return self._with(other, floored_quotient)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with(other, floored_quotient, swapped=True)

    def __mod__(self, other: Any) -> Any:
        return self._with(other, floored_remainder)

    def __rmod__(self, other: Any) -> Any:
        return self._with(other, floored_remainder, swapped=True)

    def __neg__(self) -> Size:
        return Size(-self.expression, self.decide)

    def __pow__(self, other: Any) -> Any:
        if not isinstance(other, int) or other < 0:
            raise NotVerifiableError(f"a size to the power of {other}")
        return Size(reduce(operator.mul, [self.expression] * other, z3.IntVal(1)), self.decide)

    def __lt__(self, other: Any) -> Any:
        return self._with(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._with(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._with(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._with(other, operator.ge)

    def __eq__(self, other: object) -> Any:
        return self._with(other, operator.eq)

    def __ne__(self, other: object) -> Any:
        return self._with(other, operator.ne)

    __hash__ = None  # type: ignore[assignment]  # equal ones are not known to be

    def __bool__(self) -> bool:
        return bool(self._known())

    def __index__(self) -> int:
        return int(self._known())

    __int__ = __index__

    def _known(self) -> int | bool:
        found = constant(z3.simplify(self.expression))
        if found is None and z3.is_bool(self.expression) and self.decide is not None:
            return self.decide(self.expression)
        if found is None:
            raise NotVerifiableError(f"Python needs the size {str(self.expression)[:80]}, which is not constant")
        return found


def largest(*values: Any) -> Any:
    """Replace ``max``."""
    return _chosen(values, max, operator.ge)


def smallest(*values: Any) -> Any:
    """Replace ``min``."""
    return _chosen(values, min, operator.le)


def _chosen(values: Sequence[Any], usual: Callable[..., Any], first: Compare) -> Any:
    given = list(values[0]) if len(values) == 1 else list(values)
    if not any(isinstance(value, Size) for value in given):
        return usual(given)
    expressions = [expression_of(value) for value in given]
    decide = next((value.decide for value in given if isinstance(value, Size) and value.decide), None)
    return Size(reduce(lambda a, b: z3.If(first(a, b), a, b), expressions), decide)


_OPERATIONS: dict[str, Callable[..., Expression]] = {
    "Add": lambda *a: reduce(operator.add, a),
    "Mul": lambda *a: reduce(operator.mul, a),
    "FloorDiv": floored_quotient,
    "CleanDiv": floored_quotient,
    "Mod": floored_remainder,
    "PythonMod": floored_remainder,
    "ModularIndexing": lambda x, d, m: floored_remainder(floored_quotient(x, d), m),
    "Identity": lambda x: x,
    "Max": lambda *a: reduce(lambda x, y: z3.If(x >= y, x, y), a),
    "Min": lambda *a: reduce(lambda x, y: z3.If(x <= y, x, y), a),
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": z3.And,
    "Or": z3.Or,
    "Not": z3.Not,
}


def from_sympy(expression: Any) -> Expression:
    """Return what one of PyTorch's expressions of sizes, which are sympy's, is for z3.

    Raises:
        NotVerifiableError: it has an operation that is not known here.
    """
    if getattr(expression, "is_Symbol", False):
        return z3.Int(str(expression))
    if getattr(expression, "is_Integer", False):
        return z3.IntVal(int(expression))
    if expression in (True, False):
        return z3.BoolVal(bool(expression))
    kind = type(expression).__name__
    if kind == "Pow" and expression.args[1].is_Integer and expression.args[1] >= 0:
        return reduce(operator.mul, [from_sympy(expression.args[0])] * int(expression.args[1]), z3.IntVal(1))
    if kind not in _OPERATIONS:
        raise NotVerifiableError(f"a size with {kind}: {expression}")
    return _OPERATIONS[kind](*map(from_sympy, expression.args))


def known_from(guards: Iterable[Any], ranges: Iterable[tuple[Any, Any, Any]]) -> list[Expression]:
    """Return what guards, and the ranges of symbols, say; what cannot be said here is left out, as less is known then.

    Args:
        guards: sympy's truth values.
        ranges: a symbol, its smallest and its largest value.
    """
    found = []
    # PyTorch's sizes are integers of 64 bits, whatever else is known of them.
    most = limits(64, signed=True)
    for symbol, low, high in ranges:
        for bound, otherwise, compare in ((low, most[0], operator.ge), (high, most[1], operator.le)):
            value = int(bound) if getattr(bound, "is_Integer", False) else otherwise
            found.append(compare(from_sympy(symbol), z3.IntVal(value)))
    for guard in guards:
        try:
            found.append(from_sympy(guard))
        except NotVerifiableError:
            continue
    return found
