"""Forms of expressions: the one that equal ones share, the conditions they depend on, what they are made of."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from fractions import Fraction

import z3

from pytest_regional.verify import arithmetic as reals
from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.symbols import ANY, EXTREMES, LARGEST, PRODUCT, SUM, Expression, constant, parts_of

# Constants are computed in double precision, and printed as such.
_ROUNDING = Fraction(1, 1 << 40)


def neutral(kind: str, sort: z3.SortRef) -> Expression:
    """Return what changes nothing when it is combined, as kernels and graphs name it."""
    if kind == ANY:
        return z3.BoolVal(False)
    if kind in (SUM, PRODUCT):
        number = int(kind == PRODUCT)
        return z3.RealVal(number) if sort.eq(reals.REAL) else z3.IntVal(number)
    if not sort.eq(reals.REAL):
        raise NotVerifiableError(f"the {kind} of integers")
    return reals.LOWEST if EXTREMES.get(kind, kind) == LARGEST else reals.HIGHEST


def normal(expression: Expression) -> Expression:
    """Return an expression in the form that equal ones share more often."""
    plain = z3.simplify(expression, som=True, sort_sums=True, arith_lhs=True)
    pairs = [(part, joined) for part in parts_of([plain]) if (joined := _joined_powers(part)) is not None]
    return z3.simplify(z3.substitute(plain, *pairs), som=True, sort_sums=True, arith_lhs=True) if pairs else plain


def _joined_powers(expression: Expression) -> Expression | None:
    """Return a product of several exponentials with one, or None if it is something else."""
    if not z3.is_mul(expression):
        return None
    powers = [part for part in expression.children() if z3.is_app(part) and part.decl().name() == "exp"]
    if len(powers) < 2:
        return None
    others = [part for part in expression.children() if not any(part.eq(power) for power in powers)]
    exponent = z3.Sum([power.arg(0) for power in powers])
    return functools.reduce(operator.mul, others, reals.function("exp", exponent))


def is_rounding(one: Expression, other: Expression) -> bool:
    """Say whether two polynomials differ by no more than the rounding of their constants, if at all."""
    own = _coefficients(normal(one))
    apart = _coefficients(normal(one - other))
    return all(abs(number) <= abs(own.get(term, Fraction(0))) * _ROUNDING for term, number in apart.items())


def factors_in(expression: Expression) -> list[Expression]:
    """Return what a product is made of."""
    if z3.is_mul(expression):
        return [factor for part in expression.children() for factor in factors_in(part)]
    return [expression]


def _coefficients(polynomial: Expression) -> dict[str, Fraction]:
    """Return the number of each term, by the text of what it is multiplied by."""
    terms = polynomial.children() if z3.is_add(polynomial) else [polynomial]
    found: dict[str, Fraction] = {}
    for term in terms:
        number, rest = Fraction(1), []
        for factor in factors_in(term):
            if z3.is_rational_value(factor):
                number *= Fraction(factor.as_fraction())
            else:
                rest.append(factor.sexpr())
        found[" ".join(sorted(rest))] = number
    return found


def product(sizes: Iterable[Expression]) -> Expression:
    """Return how many places there are on axes of these sizes."""
    return functools.reduce(operator.mul, sizes, z3.IntVal(1))


_LINEAR: dict[int, tuple[Expression, bool]] = {}
_MOST_KNOWN = 200_000


def is_linear(expression: Expression) -> bool:
    """Say whether an expression has no products, quotients or powers of variables."""
    known = _LINEAR.get(expression.get_id())
    if known is None:
        if len(_LINEAR) > _MOST_KNOWN:
            _LINEAR.clear()
        # The key is a number that z3 gives away again unless the expression is kept.
        known = _LINEAR[expression.get_id()] = expression, _is_linear(expression)
    return known[1]


def _is_linear(expression: Expression) -> bool:
    return not any(
        (z3.is_mul(part) and sum(constant(factor) is None for factor in factors_in(part)) > 1)
        or z3.is_app_of(part, z3.Z3_OP_POWER)
        or ((z3.is_idiv(part) or z3.is_mod(part)) and constant(part.arg(1)) is None)
        for part in parts_of([expression])
    )


def has_reals(expression: Expression) -> bool:
    """Say whether an expression depends on real numbers."""
    return any(part.sort().eq(reals.REAL) for part in parts_of([expression]))


def beyond_all(condition: Expression) -> bool | None:
    """Return what a comparison with an infinity says, or None if it is something else."""
    if condition.num_args() != 2:
        return None
    for ends, other in (condition.children(), condition.children()[::-1]):
        lowest, highest = ends.eq(reals.LOWEST), ends.eq(reals.HIGHEST)
        if not (lowest or highest) or any(part.decl().name().startswith("float ") for part in _constants(other)):
            continue
        if z3.is_eq(condition):
            return False
        below = z3.is_le(condition) or z3.is_lt(condition)
        if not below and not (z3.is_ge(condition) or z3.is_gt(condition)):
            return None
        return bool((below == lowest) == ends.eq(condition.arg(0)))
    return None


def _constants(expression: Expression) -> list[Expression]:
    return [part for part in parts_of([expression]) if z3.is_const(part)]


def _is_choice(part: Expression, whole: bool) -> bool:
    """Say whether an expression is one of two values; between integers if ``whole``, or if numbers decide."""
    return z3.is_app_of(part, z3.Z3_OP_ITE) and (whole or not z3.is_int(part) or has_reals(part.arg(0)))


def conditions_in(expressions: Sequence[Expression], whole: bool = False) -> list[Expression]:
    """Return what choices depend on, the innermost last; of those between integers if ``whole``."""
    found = []
    for part in parts_of(expressions):
        if _is_choice(part, whole):
            found.append(part.arg(0))
        elif z3.is_bool(part) and part.sort().eq(z3.BoolSort()) and any(part.eq(e) for e in expressions):
            found.append(part)
    return found


def atoms_of(condition: Expression) -> list[Expression]:
    """Return the comparisons that a condition is made of."""
    if any(map(z3.is_bool, condition.children())):
        return [atom for part in condition.children() for atom in atoms_of(part)]
    return [] if z3.is_true(condition) or z3.is_false(condition) else [condition]


def condition_in(expressions: Sequence[Expression], whole: bool) -> Expression | None:
    """Return a comparison on which a choice depends, and that depends on no other choice."""
    for condition in conditions_in(expressions, whole):
        for atom in atoms_of(condition):
            if not any(_is_choice(part, whole) for part in parts_of([atom])):
                return atom
    return None


def is_below(atom: Expression) -> bool:
    """Say whether a comparison lets its left side be less."""
    return bool(z3.is_lt(atom) or z3.is_ge(atom))


def is_above(atom: Expression) -> bool:
    """Say whether a comparison lets its left side be more."""
    return bool(z3.is_gt(atom) or z3.is_le(atom))


def short(expression: Expression) -> str:
    """Return an expression as text for a message."""
    return " ".join(str(expression).split())[:120]
