"""Facts about quotients that follow from what is known, and that z3 takes long to find among products of sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import z3

from pytest_regional.verify.symbols import Expression, constant, parts_of, symbols_of

_ROUNDS = 3


@dataclass(frozen=True)
class Quotient:
    """``value`` is ``dividend`` divided by ``divisor``; of numbers that are not negative it is the same as floored."""

    dividend: Expression
    divisor: Expression
    value: Expression

    def twin(self) -> Quotient:
        """Return the quotient of another program, lane or round."""
        mine = symbols_of([self.dividend, self.divisor, self.value])
        pairs = [(symbol, z3.Int(f"{name}'")) for name, symbol in mine.items() if "#" in name and z3.is_int(symbol)]
        return Quotient(*(z3.substitute(part, *pairs) for part in (self.dividend, self.divisor, self.value)))


def quotient_lemmas(parts: Sequence[Expression], quotients: Iterable[Quotient]) -> list[Expression]:
    """Return implications about the quotients that ``parts`` mention, true whatever is known.

    ``x < m * n`` implies ``x // m < n``, for each bound of ``x`` among the comparisons in ``parts``; and dividing twice
    is dividing by the product.
    """
    found = [quotient for quotient in quotients if constant(quotient.divisor) is None]
    if not found:
        return []
    names = symbols_of(parts)
    mentioned = [q for q in found if q.value.decl().name() in names]
    mentioned += [q.twin() for q in found if f"{q.value.decl().name()}'" in names]
    bounds = list(_bounds(parts))
    lemmas: list[Expression] = []
    seen: set[tuple[int, int]] = set()
    for _ in range(_ROUNDS):
        for quotient in mentioned:
            for value, bound in list(bounds):
                key = quotient.value.get_id(), bound.get_id()
                if key in seen or not value.eq(quotient.dividend):
                    continue
                seen.add(key)
                below = _divided(bound, quotient.divisor)
                if below is not None:
                    given = z3.And(quotient.divisor > 0, value >= 0, value < bound)
                    lemmas.append(z3.Implies(given, quotient.value < below))
                    bounds.append((quotient.value, below))
    return lemmas + list(_twice(mentioned))


def _bounds(parts: Sequence[Expression]) -> Iterator[tuple[Expression, Expression]]:
    """Yield what is compared, and what it may be below."""
    for part in parts_of(parts):
        if z3.is_lt(part) or z3.is_le(part) or z3.is_gt(part) or z3.is_ge(part):
            left, right = part.children()
            yield left, right
            yield right, left


def _twice(quotients: Sequence[Quotient]) -> Iterator[Expression]:
    for first in quotients:
        for second in quotients:
            if not second.dividend.eq(first.value):
                continue
            for whole in quotients:
                product = factors_of(first.divisor), factors_of(second.divisor), factors_of(whole.divisor)
                if None in product or not whole.dividend.eq(first.dividend):
                    continue
                one, other, both = product
                if one and other and both and one[0] * other[0] == both[0] and one[1] + other[1] == both[1]:
                    given = z3.And(first.divisor > 0, second.divisor > 0, first.dividend >= 0)
                    yield z3.Implies(given, second.value == whole.value)


Monomial = tuple[int, Counter[str]]


def factors_of(expression: Expression) -> Monomial | None:
    """Return the number and the atoms of a product, or None for a sum."""
    found = monomials(expression)
    return found[0][:2] if len(found) == 1 else None


def monomials(expression: Expression) -> list[tuple[int, Counter[str], dict[str, Expression]]]:
    """Return the terms of a polynomial: for each its number, the powers of its atoms, and the atoms by their names."""
    plain = z3.simplify(expression, som=True)
    terms = plain.children() if z3.is_add(plain) else [plain]
    found = []
    for term in terms:
        number, atoms, named = 1, Counter[str](), {}
        for factor in _factors_of(term):
            value = constant(factor)
            if value is not None:
                number *= int(value)
                continue
            base, power = factor, 1
            if z3.is_app(factor) and factor.decl().kind() == z3.Z3_OP_POWER and constant(factor.arg(1)) is not None:
                base, power = factor.arg(0), int(constant(factor.arg(1)) or 1)
            atoms[base.sexpr()] += power
            named[base.sexpr()] = base
        found.append((number, atoms, named))
    return found


def _factors_of(term: Expression) -> list[Expression]:
    """Return what a product is made of; z3 leaves products in products."""
    return [factor for part in term.children() for factor in _factors_of(part)] if z3.is_mul(term) else [term]


def _divided(bound: Expression, divisor: Expression) -> Expression | None:
    """Return ``bound`` divided by ``divisor`` where that is exact, term by term."""
    factors = factors_of(divisor)
    if factors is None:
        return None
    number, atoms = factors
    terms = []
    for many, held, named in monomials(bound):
        if number == 0 or many % number or atoms - held:
            return None
        product: Expression = z3.IntVal(many // number)
        for name, power in (held - atoms).items():
            for _ in range(power):
                product = product * named[name]
        terms.append(product)
    return z3.Sum(terms) if len(terms) > 1 else terms[0]
