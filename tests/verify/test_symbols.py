"""What is known of quotients, remainders and integers that wrap: the true value, and no other."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import z3
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_regional.verify.kernels import KernelRun
from pytest_regional.verify.question import Question, Quotient, quotient_lemmas
from pytest_regional.verify.symbols import (
    INTEGER,
    Expression,
    Lowering,
    Scope,
    evaluated,
    floored_quotient,
    floored_remainder,
    limits,
    truncated_quotient,
    truncated_remainder,
    wrapped,
)

Operation = Callable[[Expression, Expression], Expression]


def c_quotient(x: int, m: int) -> int:
    return abs(x) // abs(m) * (1 if (x < 0) == (m < 0) else -1)


OPERATIONS: dict[str, tuple[Operation, Callable[[int, int], int]]] = {
    "truncated quotient": (truncated_quotient, c_quotient),
    "truncated remainder": (truncated_remainder, lambda x, m: x - m * c_quotient(x, m)),
    "floored quotient": (floored_quotient, lambda x, m: x // m),
    "floored remainder": (floored_remainder, lambda x, m: x % m),
}

SMALL = st.integers(-40, 40)
INTEGERS = SMALL | st.integers(-(2**33), 2**33)
DIVISORS = INTEGERS.filter(bool)
WIDTHS = [(bits, signed) for bits in (8, 16, 32, 64) for signed in (True, False)]

# z3 takes milliseconds for each, and there are many operations and widths.
some = settings(max_examples=settings.default.max_examples // 3)
by_operation = pytest.mark.parametrize("name", OPERATIONS)
by_width = pytest.mark.parametrize(("bits", "signed"), WIDTHS)

X, M = z3.Ints("x m")


def values_of(expression: Expression, **fixed: int) -> list[int]:
    """Return the values that z3 allows an expression, at most two."""
    lowering = Lowering(Scope())
    lowered = lowering.of(expression)
    solver = z3.Solver()
    solver.add(*lowering.known, *(z3.Int(name) == value for name, value in fixed.items()))
    found: list[int] = []
    result = z3.Int("result")
    solver.add(result == lowered)
    while len(found) < 2 and solver.check() == z3.sat:
        found.append(solver.model()[result].as_long())
        solver.add(result != found[-1])
    return found


def test_the_reference_divides_as_c_does():
    assert [c_quotient(x, m) for x, m in ((7, 2), (-7, 2), (7, -2), (-7, -2), (6, -2))] == [3, -3, -3, 3, -3]
    assert [int(np.fmod(np.int64(x), np.int64(m))) for x, m in ((-7, 2), (7, -2), (-7, -2))] == [-1, 1, -1]


@by_operation
@some
@given(x=INTEGERS, m=DIVISORS)
@example(x=-1, m=2)
@example(x=-4, m=-2)
@example(x=0, m=-3)
def test_a_symbolic_divisor_leaves_the_true_value_alone(name: str, x: int, m: int):
    mark, true = OPERATIONS[name]
    assert values_of(mark(X, M), x=x, m=m) == [true(x, m)]


@by_operation
@some
@given(x=INTEGERS, m=DIVISORS)
@example(x=-1, m=2)
@example(x=-4, m=-2)
@example(x=-7, m=1)
def test_a_constant_divisor_leaves_the_true_value_alone(name: str, x: int, m: int):
    mark, true = OPERATIONS[name]
    assert values_of(mark(X, z3.IntVal(m)), x=x) == [true(x, m)]


@by_operation
@some
@given(x=INTEGERS, m=DIVISORS)
def test_numbers_are_computed(name: str, x: int, m: int):
    mark, true = OPERATIONS[name]
    assert mark(z3.IntVal(x), z3.IntVal(m)).eq(z3.IntVal(true(x, m)))
    assert evaluated(mark(X, M), {"x": x, "m": m}) == true(x, m)
    assert evaluated(mark(X, M) * 3 - mark(X + 1, M), {"x": x, "m": m}) == 3 * true(x, m) - true(x + 1, m)


@by_operation
def test_nothing_is_known_of_a_division_by_zero(name: str):
    mark, _ = OPERATIONS[name]
    solver, lowering = z3.Solver(), Lowering(Scope())
    quotient = lowering.of(floored_quotient(X, M) if "floored" in name else truncated_quotient(X, M))
    solver.add(*lowering.known, X == 5, M == 0, quotient == 1234)
    assert solver.check() == z3.sat
    with pytest.raises(KeyError):
        evaluated(mark(X, M), {"x": 5, "m": 0})


@by_operation
@some
@given(x=SMALL, m=SMALL.filter(bool), k=SMALL.filter(bool))
def test_marks_within_marks(name: str, x: int, m: int, k: int):
    mark, true = OPERATIONS[name]
    expected = true(true(x, m) + 3, k)
    assert values_of(mark(mark(X, M) + 3, z3.Int("k")), x=x, m=m, k=k) == [expected]


def exact_of(expression: Expression, scope: Scope, *known: Expression) -> tuple[list[int], bool]:
    """Return the values of an expression, and whether what was taken for exact is."""
    lowering = Lowering(scope)
    lowered, result = lowering.of(expression), z3.Int("result")
    solver = z3.Solver()
    solver.add(*known, *lowering.known, result == lowered)
    fits = z3.And(*lowering.exact([expression]))
    solver.push()
    solver.add(z3.Not(fits))
    exact = solver.check() == z3.unsat
    solver.pop()
    found = []
    while len(found) < 2 and solver.check() == z3.sat:
        found.append(solver.model()[result].as_long())
        solver.add(result != found[-1])
    return found, exact


def true_wrap(x: int, bits: int, signed: bool) -> int:
    return int(np.array([x % 2**bits], dtype=np.uint64).astype(f"{'i' if signed else 'u'}{bits // 8}")[0])


@by_width
@some
@given(x=st.integers(-(2**66), 2**66) | SMALL)
@example(x=2**31)
@example(x=-1)
@example(x=127)
@example(x=128)
def test_an_index_is_exact_where_it_fits(bits: int, signed: bool, x: int):
    low, high = limits(bits, signed)
    values, exact = exact_of(wrapped(X, bits, signed), Scope(), x == X)
    assert values == [x]
    assert exact == (low <= x <= high) == (x == true_wrap(x, bits, signed))


@by_width
@some
@given(x=st.integers(-(2**66), 2**66) | SMALL)
def test_wrapped_numbers_are_computed(bits: int, signed: bool, x: int):
    assert wrapped(z3.IntVal(x), bits, signed).eq(z3.IntVal(true_wrap(x, bits, signed)))
    assert evaluated(wrapped(X, bits, signed) + 1, {"x": x}) == true_wrap(x, bits, signed) + 1


@by_width
@some
@given(loaded=st.integers(-(2**63), 2**63 - 1) | SMALL, factor=st.integers(-5, 5))
@example(loaded=2**31 - 1, factor=2)
def test_data_may_wrap(bits: int, signed: bool, loaded: int, factor: int):
    scope = Scope()
    value = scope.function("loaded keys 0 as int64", INTEGER, [z3.Int("place")], limits(64, True))
    mark = wrapped(value * factor, bits, signed)
    low, high = limits(bits, signed)
    expected = true_wrap(loaded * factor, bits, signed)
    values, exact = exact_of(mark, scope, value == loaded)
    assert exact, "nothing is asked of data"
    if low <= loaded * factor <= high:
        assert values == [expected]
    # Where it wraps it may be anything of its type, what it is among them.
    possible, _ = exact_of(mark, scope, value == loaded, z3.Int("result") == expected)
    assert possible == [expected]
    for beyond in (low - 1, high + 1):
        assert exact_of(mark, scope, value == loaded, z3.Int("result") == beyond)[0] == []


@by_width
def test_loaded_integers_are_of_their_type(bits: int, signed: bool):
    scope, (low, high) = Scope(), limits(bits, signed)
    value = scope.function("loaded keys 0 as x", INTEGER, [X], (low, high))
    for number, expected in ((low, [low]), (high, [high]), (low - 1, []), (high + 1, [])):
        assert exact_of(value, scope, value == number)[0] == expected


def test_what_is_computed_of_data_and_sizes_is_data():
    scope = Scope()
    value = scope.function("loaded keys 0 as int32", INTEGER, [X], limits(32, True))
    lowering = Lowering(scope)
    assert lowering.exact([wrapped(value + X, 32, True)]) == []
    assert len(lowering.exact([wrapped(wrapped(X * M, 32, True) + value, 32, True)])) == 1
    assert len(lowering.exact([wrapped(wrapped(X * M, 32, True) + M, 32, True)])) == 2


def test_what_was_asked_before_is_asked_again():
    lowering = Lowering(Scope())
    first = wrapped(X * M, 32, True)
    assert len(lowering.exact([first])) == len(lowering.exact([first + 1])) == 1


def test_an_evaluated_expression_names_all_of_its_variables():
    with pytest.raises(KeyError):
        evaluated(X + M, {"x": 1})


@some
@given(base=st.integers(0, 9), lane=st.integers(0, 7))
def test_an_index_tells_what_it_is_made_of(base: int, lane: int):
    scope = Scope()
    program, place = (
        scope.variable("program", z3.IntVal(0), z3.IntVal(10)),
        scope.variable("lane", z3.IntVal(0), z3.IntVal(8)),
    )
    index = scope.index(program, place)
    question = Question(KernelRun(scope, [], [], ()), {}, [], 10)
    known = question.closed([index, program, place])
    there = question.refute([index == base * 8 + lane], known)
    assert (there[program].as_long(), there[place].as_long()) == (base, lane)
    assert question.refute([index == base * 8 + lane, program != base], known) is None
    assert question.refute([index == 80], question.closed([index])) is None
    assert scope.index(program, place).eq(index)


def test_lanes_are_replaced_within_indices():
    scope = Scope()
    program, lane, other = (scope.variable(name, z3.IntVal(0), z3.IntVal(8)) for name in ("program", "lane", "other"))
    index = scope.index(program, lane)
    assert scope.replaced(index * 2, [(lane, other)]).eq(scope.index(program, other) * 2)
    assert scope.replaced(scope.index(index, other), [(lane, other)]).eq(
        scope.index(scope.index(program, other), other)
    )
    moved = scope.replaced(index, [(lane, other % 4)])
    solver = z3.Solver()
    solver.add(program == 3, other == 6, moved != 3 * 8 + 2)
    assert solver.check() == z3.unsat
    assert scope.replaced(program + 1, [(lane, other)]).eq(program + 1)


def test_indices_of_other_runs_are_others():
    scope = Scope()
    one, two, lane = (scope.variable(name, z3.IntVal(0), z3.IntVal(8)) for name in ("one", "two", "lane"))
    made = scope.made.copy()
    first = scope.index(one, lane)
    scope.made = made  # as another run would be at the same place
    second = scope.index(two, lane)
    assert not first.eq(second)
    assert scope.indices[first.decl().name()].base.eq(one)


def test_facts_about_quotients_are_true_of_small_numbers():
    m, n, k, once, twice, at_once = z3.Ints("m n k once twice at_once")
    quotients = [Quotient(X, m, once), Quotient(once, n, twice), Quotient(X, m * n, at_once)]
    lemmas = quotient_lemmas([z3.And(m * n * k > X, once >= 0), twice == at_once], quotients)
    facts = [z3.simplify(lemma.arg(1), som=True) for lemma in lemmas]
    expected = [once < n * k, twice < k, at_once < k, twice == at_once]
    assert {str(fact) for fact in facts} == {str(z3.simplify(fact, som=True)) for fact in expected}
    for x, *sizes in itertools.product(range(-1, 8), *[range(-1, 4)] * 3):
        # Nothing is known of what is divided by 0.
        first = int(x / sizes[0]) if sizes[0] else 77
        second = int(first / sizes[1]) if sizes[1] else 77
        whole = int(x / (sizes[0] * sizes[1])) if sizes[0] * sizes[1] else 77
        values = zip((X, m, n, k, once, twice, at_once), (x, *sizes, first, second, whole), strict=True)
        given = [(symbol, z3.IntVal(value)) for symbol, value in values]
        assert z3.is_true(z3.simplify(z3.substitute(z3.And(*lemmas), *given))), given
