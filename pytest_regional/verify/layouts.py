"""Which element of a tensor lies at an address."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import z3

from pytest_regional.verify.lemmas import factors_of, monomials
from pytest_regional.verify.operators.calls import Place
from pytest_regional.verify.symbols import Expression, constant, symbols_of


def divided_by_strides(offset: Expression, strides: Sequence[Expression]) -> Place | None:
    """Return what each stride is multiplied by in an offset, term by term; None if some term has none of them.

    A term belongs to the largest stride that divides it.
    """
    factors = [factors_of(stride) for stride in strides]
    sizes = [(0, 0) if part is None else (sum(part[1].values()), part[0]) for part in factors]
    order = sorted(range(len(strides)), key=lambda axis: sizes[axis], reverse=True)
    found: list[Expression] = [z3.IntVal(0) for _ in strides]
    for number, atoms, named in monomials(offset):
        for axis in order:
            part = factors[axis]
            if part is None or not part[0] or part[1] - atoms:
                continue
            whole = not atoms and not part[1]
            if number % part[0] and not whole:
                continue
            product_of: Expression = z3.IntVal(number // part[0])
            for name, power in (atoms - part[1]).items():
                product_of = product_of * functools.reduce(operator.mul, [named[name]] * power)
            found[axis] = found[axis] + product_of
            number = number % part[0] if whole else 0
            if not number:
                break
        else:
            return None
    return tuple(map(z3.simplify, found))


def larger_first(strides: Sequence[Expression], shape: Place, one: int, other: int) -> int:
    """Compare axes by their strides, as far as these are known; an axis of size 1 comes first."""
    if constant(shape[one]) == 1 or constant(shape[other]) == 1:
        return int(constant(shape[other]) == 1) - int(constant(shape[one]) == 1)
    left, right = constant(z3.simplify(strides[one])), constant(z3.simplify(strides[other]))
    if left is not None and right is not None:
        return int(right) - int(left)
    return len(symbols_of([strides[other]])) - len(symbols_of([strides[one]])) or one - other
