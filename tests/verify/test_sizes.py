"""Sizes that stand for all of their values compute as Python's integers do."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import sympy
import z3
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, ModularIndexing, PythonMod

from pytest_regional.verify import NotVerifiableError
from pytest_regional.verify.symbols import Size, evaluated, expression_of, from_sympy, known_from, largest, smallest

SIZES = st.integers(1, 50)
NAMES = {"s0": 7, "s1": 4}
OPERATORS = ["add", "sub", "mul", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne"]


def number(value: Any, **sizes: int) -> int | bool:
    return evaluated(expression_of(value), sizes)


@pytest.mark.parametrize("name", OPERATORS)
@given(x=SIZES, y=SIZES)
def test_operators(name: str, x: int, y: int):
    compute = getattr(operator, name)
    one, other = Size(z3.Int("x")), Size(z3.Int("y"))
    assert number(compute(one, other), x=x, y=y) == compute(x, y)
    assert number(compute(one, y), x=x) == compute(x, y)
    assert number(compute(x, other), y=y) == compute(x, y)
    assert number(compute(-one, other), x=x, y=y) == compute(-x, y)


@given(x=SIZES, y=SIZES, z=SIZES)
def test_largest_and_smallest(x: int, y: int, z: int):
    one, other = Size(z3.Int("x")), Size(z3.Int("y"))
    assert number(largest(one, z, other), x=x, y=y) == max(x, y, z)
    assert number(smallest([one, z, other]), x=x, y=y) == min(x, y, z)
    assert (largest(x, y), smallest(x, y)) == (max(x, y), min(x, y))


def test_powers():
    assert number(Size(z3.Int("x")) ** 3, x=5) == 125
    assert number(Size(z3.Int("x")) ** 0, x=5) == 1
    with pytest.raises(NotVerifiableError, match="to the power of -1"):
        Size(z3.Int("x")) ** -1


def test_python_is_given_no_number_for_a_size():
    size = Size(z3.Int("x"), lambda condition: True)
    assert bool(size > 3)
    assert int(Size(z3.IntVal(4))) == 4
    for convert in (int, range, bool):
        with pytest.raises(NotVerifiableError, match="which is not constant"):
            convert(size)


S0, S1 = (sympy.Symbol(name, integer=True, positive=True) for name in NAMES)


@pytest.mark.parametrize(
    "expression",
    [
        S0 + 2 * S1 - 3,
        S0 * S1**3,
        FloorDiv(S0 - 9, S1),
        FloorDiv(S0, S1 - 6),
        Mod(S0, S1),
        PythonMod(S0 - 9, S1),
        ModularIndexing(S0, 2, S1),
        CleanDiv(S0 * S1, S1),
        Max(S0, S1, 5),
        Min(S0, S1, 5),
        sympy.Eq(S0, S1),
        sympy.Ne(S0, S1),
        S0 < S1,
        S0 <= S1 + 3,
        S0 > S1,
        S0 >= 2 * S1,
        sympy.And(S0 > 1, S1 > 4),
        sympy.Or(S0 > 1, S1 > 4),
        sympy.Not(sympy.And(S0 > 1, S1 > 3)),
    ],
    ids=str,
)
def test_expressions_of_guards(expression: Any):
    true = expression.subs({S0: NAMES["s0"], S1: NAMES["s1"]})
    assert evaluated(from_sympy(expression), NAMES) == (bool(true) if true in (True, False) else int(true))


def test_other_expressions_are_refused_and_guards_with_them_left_out():
    strange = sympy.Function("other")(S0)
    with pytest.raises(NotVerifiableError, match="a size with other"):
        from_sympy(strange)
    known = known_from([sympy.Eq(strange, 1), S0 > S1], [(S0, sympy.Integer(2), sympy.oo), (S1, 2, sympy.Integer(9))])
    found = [[evaluated(fact, {"s0": a, "s1": b}) for fact in known] for a, b in ((2, 1), (1, 9), (12, 10))]
    # Of each size its two limits, 64 bits where the range has none, and the guard.
    assert found == [[True] * 5, [False, True, True, True, False], [True, True, True, False, True]]


def test_sizes_of_which_no_range_is_known_fit_64_bits():
    symbol = sympy.Symbol("u0", integer=True)
    solver = z3.Solver()
    solver.add(*known_from([], [(symbol, -sympy.oo, sympy.oo)]))
    for value, possible in ((2**63 - 1, True), (2**63, False), (-(2**63), True), (-(2**63) - 1, False)):
        assert (solver.check(z3.Int("u0") == value) == z3.sat) == possible
