"""Forms of expressions: which are the same, and which only look alike."""

import pytest
import z3

from pytest_regional.verify import arithmetic as reals
from pytest_regional.verify.forms import beyond_all, is_linear, is_rounding, normal
from pytest_regional.verify.layouts import divided_by_strides

A, B, C = z3.Reals("a b c")
X, Y, N = z3.Ints("x y n")


def exp(value):
    return reals.function("exp", value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((A + B) * C, C * B + A * C),
        (exp(A - B), exp(-(B - A))),
        (exp(A - B) * exp(B - C), exp(A - C)),
        (reals.divided(A, z3.RealVal(4)), A * z3.Q(1, 4)),
        (reals.power(A, reals.real(2.0)), A * A),
    ],
    ids=str,
)
def test_equal_expressions_have_one_form(one, other):
    assert normal(one).eq(normal(other))


@pytest.mark.parametrize(("one", "other"), [(A * B, A + B), (exp(A) * exp(B), exp(A * B)), (A - B, B - A)], ids=str)
def test_others_do_not(one, other):
    assert not normal(one).eq(normal(other))


def test_rounding_of_constants():
    a_bit = reals.real(2 + 2**-50)
    assert is_rounding(a_bit * A + B, 2 * A + B)
    assert is_rounding(A, A)
    assert not is_rounding(A, A + reals.real(1e-14) * B)  # a term is missing, however small
    assert not is_rounding(reals.real(2.001) * A, 2 * A)
    assert not is_rounding(z3.RealVal(0), A)


def test_fractions_that_were_rounded():
    assert reals.real(0.1).eq(z3.Q(1, 10))
    assert reals.real(1 / 448).eq(z3.Q(1, 448))
    assert not reals.real(2**0.5).eq(z3.Q(14142, 10000))


@pytest.mark.parametrize(
    ("condition", "known"),
    [
        (reals.LOWEST < A, True),
        (A > reals.HIGHEST, False),
        (A <= reals.LOWEST, False),
        (reals.HIGHEST >= A, True),
        (reals.LOWEST == A, False),
        (A < B, None),
        (reals.LOWEST < reals.LOWEST + A, None),
    ],
    ids=str,
)
def test_nothing_is_beyond_infinities(condition, known):
    assert beyond_all(condition) is known


def test_products_of_variables_are_not_linear():
    assert is_linear(2 * X + Y > 3)
    assert not is_linear(X * Y > 3)
    assert not is_linear(X % Y == 0)


def test_offsets_are_divided_by_strides():
    place = divided_by_strides(X * N + Y + 3 * N + 1, [N, z3.IntVal(1)])
    assert place is not None
    assert [z3.simplify(found - wanted).as_long() for found, wanted in zip(place, (X + 3, Y + 1), strict=True)] == [
        0,
        0,
    ]
    assert divided_by_strides(X, [N]) is None
