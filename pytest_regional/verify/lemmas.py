"""Facts that follow from what is known, and that z3 takes long to find among products of sizes.

They are about quotients, and about offsets that count in digits, as ``x0 + s0 * x1 + s0 * s1 * x2`` with ``x0 < s0``
and ``x1 < s1`` does: two of them are equal only where all of their digits are, and such a sum is less than
``s0 * s1 * s2`` if ``x2 < s2``.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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


Pairs = Sequence[tuple[Expression, Expression]]

Powers = tuple[tuple[str, int], ...]
"""A product of atoms, by their text, each with its power."""


def digit_lemmas(parts: Sequence[Expression], quotients: Iterable[Quotient]) -> list[Expression]:
    """Return implications about equations in ``parts`` whose sides are one offset of two programs, and about limits.

    They are true whatever is known: a sum ``c1 * d1 + c2 * d2 + ...``, where each ``c`` divides the next one and each
    ``d`` is less than what it has to be multiplied by for that, determines every ``d``, and is less than the next
    ``c`` would be. A variable that is divided is its remainder and a multiple of its quotient.
    """
    known = [q for q in quotients if _is_variable(q.dividend) and "#" in q.dividend.decl().name()]
    lemmas: list[Expression] = []
    for offset, digits in _offsets(parts):
        for split in _splits(offset, known):
            lemmas += _one_of(offset, digits, split)
    values, tops = _compared(parts)
    for value in values:
        for split in _splits(value, known):
            lemmas += _below(value, tops, split)
    return lemmas


def _splits(offset: Expression, quotients: Sequence[Quotient]) -> list[_Split]:
    named = symbols_of([offset])
    used = [quotient for quotient in quotients if quotient.value.decl().name() in named]
    return [_Split(), _split(used)] if used else [_Split()]


def _is_variable(expression: Expression) -> bool:
    return bool(z3.is_const(expression)) and expression.decl().kind() == z3.Z3_OP_UNINTERPRETED


def _offsets(parts: Sequence[Expression]) -> Iterator[tuple[Expression, set[str]]]:
    """Yield offsets that are equal to those of another program, with the variables that are others there."""
    for part in parts:
        if z3.is_eq(part) and z3.is_int(part.arg(0)):
            left, right = part.children()
            pairs = _twins([left])
            if pairs and z3.substitute(left, *pairs).eq(right):
                yield left, {one.decl().name() for one, _ in pairs}


def _compared(parts: Sequence[Expression]) -> tuple[list[Expression], list[Polynomial]]:
    """Return sums of variables that are compared, and what of sizes something is compared with."""
    values: dict[int, Expression] = {}
    tops: dict[str, Expression] = {}
    for part in parts_of(parts):
        if z3.is_lt(part) or z3.is_le(part) or z3.is_gt(part) or z3.is_ge(part):
            for side in part.children():
                if any("#" in name for name in symbols_of([side])):
                    values[side.get_id()] = side
                else:
                    plain = z3.simplify(side, som=True)
                    tops[plain.sexpr()] = plain
    sums = [value for value in values.values() if z3.is_add(value) or z3.is_sub(value) or z3.is_mul(value)]
    return sums, [Polynomial.of(top) for top in tops.values() if symbols_of([top])]


def _twins(expressions: Sequence[Expression]) -> Pairs:
    named = symbols_of(expressions).items()
    return [(one, z3.Int(f"{name}'")) for name, one in named if "#" in name and z3.is_int(one)]


@dataclass(frozen=True)
class _Rest:
    """What division leaves: ``dividend - divisor * value``, less than ``divisor``."""

    name: Expression
    quotient: Quotient

    def expression(self) -> Expression:
        return self.quotient.dividend - self.quotient.divisor * self.quotient.value


@dataclass(frozen=True)
class _Split:
    """Variables as sums of a remainder and a multiple of a quotient.

    Attributes:
        steps: for each variable what it is; to be put in its place one after the other.
        rests: the remainders, by name.
        given: where the steps are true, and the remainders less than the divisors.
    """

    steps: list[tuple[Expression, Expression]] = field(default_factory=list)
    rests: dict[str, _Rest] = field(default_factory=dict)
    given: list[Expression] = field(default_factory=list)

    def determined(self, names: set[str]) -> list[Expression]:
        """Return the variables of which all is named that they are sums of."""
        found: list[Expression] = []
        for variable, parts in reversed(self.steps):
            if {name for name in symbols_of([parts]) if "#" in name} <= names:
                names = {*names, variable.decl().name()}
                found.append(variable)
        return found


def _split(quotients: Sequence[Quotient]) -> _Split:
    """Divide variables by their smallest divisors, and the quotients further."""
    made = _Split()
    parts: dict[str, list[tuple[Quotient, tuple[Expression, ...]]]] = defaultdict(list)
    for quotient in quotients:
        given = quotient.divisor > 0, quotient.dividend >= 0
        parts[quotient.dividend.decl().name()].append((quotient, given))
    values = {quotient.value.decl().name() for quotient in quotients}
    waiting = [name for name in parts if name not in values]
    while waiting:
        name = waiting.pop()
        (first, given), *others = sorted(parts.pop(name), key=lambda part: Polynomial.of(part[0].divisor).degree())
        rest = _Rest(z3.Int(f"rest of {name}"), first)
        made.rests[rest.name.decl().name()] = rest
        made.steps.append((first.dividend, rest.name + first.divisor * first.value))
        made.given.extend(given)
        below = first.value.decl().name()
        for other, also in others:
            times = Polynomial.of(other.divisor).divided(Polynomial.of(first.divisor))
            if times is None:
                continue
            if times.is_one():
                made.steps.append((other.value, first.value))
                made.given.extend(also)
                continue
            again = Quotient(first.value, times.expression(), other.value)
            parts[below].append((again, (*given, *also, again.divisor > 0)))
        if below in parts:
            waiting.append(below)
    return made


def _one_of(offset: Expression, digits: set[str], split: _Split) -> Iterator[Expression]:
    """Yield the implication that one offset determines its digits."""
    counted, _ = _counted(offset, digits, split)
    if not counted or (len(counted) == 1 and not split.steps):
        return
    given = _limits(counted, [None] * len(counted), split)
    if given is None:
        return
    equal = [*(digit.number for digit in counted), *split.determined({digit.name for digit in counted})]
    pairs = _twins([offset, *given, *equal])
    given += [z3.substitute(one, *pairs) for one in given]
    yield z3.Implies(
        z3.And(*given, offset == z3.substitute(offset, *pairs)),
        z3.And(*(one == z3.substitute(one, *pairs) for one in equal)),
    )


def _below(value: Expression, tops: Sequence[Polynomial], split: _Split) -> Iterator[Expression]:
    """Yield implications that a sum lies between 0 and what it is compared with."""
    names = {name for name in symbols_of([value]) if "#" in name}
    counted, rest = _counted(value, names, split)
    if not counted:
        return
    shifts: list[dict[Powers, int]] = [{} for _ in counted]
    for powers, number in rest.terms.items():
        # What is added belongs to the largest digit of whose factor it is a multiple, as in s0 * (x1 - 3).
        for digit, shift in reversed(list(zip(counted, shifts, strict=True))):
            times = Polynomial({powers: number}, rest.atoms).divided(digit.factor)
            if times is not None:
                shift.update(times.terms)
                break
        else:
            return
    shifted = [Polynomial(shift, rest.atoms).expression() if shift else None for shift in shifts]
    for top in tops:
        most = top.divided(counted[-1].factor)
        given = None if most is None else _limits(counted, shifted, split, most)
        if given is not None:
            yield z3.Implies(z3.And(*given), z3.And(value >= 0, value < top.expression()))


@dataclass(frozen=True)
class _Digit:
    """One of the numbers that an offset is made of.

    Attributes:
        name: of the variable, or of the remainder.
        number: its value.
        factor: what it is multiplied by.
        rest: the division that leaves it.
    """

    name: str
    number: Expression
    factor: Polynomial
    rest: _Rest | None


def _limits(
    counted: Sequence[_Digit], shifts: Sequence[Expression | None], split: _Split, top: Polynomial | None = None
) -> list[Expression] | None:
    """Return that each digit, with what is added to it, is at least 0, and less than what leads to the next factor.

    The last one has to be less than ``top``. None where a factor does not divide the next one.
    """
    given = [counted[0].factor.expression() > 0, *split.given]
    factors = [digit.factor for digit in counted]
    leads = [after.divided(factor) for factor, after in itertools.pairwise(factors)]
    for digit, lead, shift in zip(counted, [*leads, top], shifts, strict=True):
        if digit is counted[-1] and top is None:
            return given
        if lead is None:
            return None
        most = lead.expression()
        if shift is not None:
            given += [digit.number + shift >= 0, digit.number + shift < most]
        elif digit.rest is None:
            given += [digit.number >= 0, digit.number < most]
        else:
            given.append(digit.rest.quotient.divisor <= most)
    return given


def _counted(offset: Expression, digits: set[str], split: _Split) -> tuple[list[_Digit], Polynomial]:
    """Return the digits of a sum, that with the smallest factor first, and the rest; none where one has no factor."""
    plain = offset
    for step in split.steps:
        plain = z3.substitute(plain, step)
    names = digits | split.rests.keys()
    whole = Polynomial.of(plain)
    factors: dict[str, dict[Powers, int]] = defaultdict(dict)
    left: dict[Powers, int] = {}
    for powers, number in whole.terms.items():
        named = [(name, power) for name, power in powers if names & symbols_of([whole.atoms[name]]).keys()]
        if len(named) > 1 or any(power > 1 or not _is_variable(whole.atoms[name]) for name, power in named):
            return [], whole
        for name, _ in named:
            factors[name][tuple(one for one in powers if one[0] != name)] = number
        if not named:
            left[powers] = number
    found = []
    for name, terms in factors.items():
        atom = whole.atoms[name]
        variable = atom.decl().name()
        rest = split.rests.get(variable)
        number = atom if rest is None else rest.expression()
        found.append(_Digit(variable, number, Polynomial(terms, whole.atoms), rest))
    return sorted(found, key=lambda digit: digit.factor.degree()), Polynomial(left, whole.atoms)


@dataclass(frozen=True)
class Polynomial:
    """A sum of products.

    Attributes:
        terms: for each product its factor, which is not 0.
        atoms: what the products are made of, by text.
    """

    terms: Mapping[Powers, int]
    atoms: Mapping[str, Expression]

    @classmethod
    def of(cls, expression: Expression) -> Polynomial:
        """Return an expression without brackets."""
        terms: dict[Powers, int] = {}
        atoms: dict[str, Expression] = {}
        for number, powers, named in monomials(expression):
            if number:
                terms[tuple(sorted(powers.items()))] = number
                atoms.update(named)
        return cls(terms, atoms)

    def is_one(self) -> bool:
        """Say whether it is the number 1."""
        return self.terms == {(): 1}

    def expression(self) -> Expression:
        """Return it as an expression."""
        parts = [
            z3.Product(z3.IntVal(number), *(self.atoms[name] for name, power in powers for _ in range(power)))
            for powers, number in self.terms.items()
        ]
        return z3.simplify(z3.Sum(parts), som=True) if parts else z3.IntVal(0)

    def degree(self) -> tuple[int, int, int]:
        """Return what a multiple has more of: factors in a product, products, or the largest number among them."""
        factors = (sum(power for _, power in powers) for powers in self.terms)
        return max(factors, default=0), len(self.terms), max(map(abs, self.terms.values()), default=0)

    def divided(self, other: Polynomial) -> Polynomial | None:
        """Return what ``other`` has to be multiplied by to make this; None if nothing, or if ``other`` is 0."""
        atoms = {**self.atoms, **other.atoms}
        names = sorted(atoms)

        def place(powers: Powers) -> tuple[int, ...]:
            """Return the place of a product in an order that multiplication keeps."""
            held = dict(powers)
            return sum(held.values()), *(held.get(name, 0) for name in names)

        rest, found = dict(self.terms), dict[Powers, int]()
        lead = max(other.terms, key=place, default=None)
        while rest:
            first = max(rest, key=place)
            left = None if lead is None else _product(first, [(name, -power) for name, power in lead])
            if lead is None or left is None or rest[first] % other.terms[lead]:
                return None
            found[left] = rest[first] // other.terms[lead]
            for powers, number in other.terms.items():
                product = _product(left, powers)
                assert product is not None
                rest[product] = rest.get(product, 0) - number * found[left]
                if not rest[product]:
                    del rest[product]
        return Polynomial(found, atoms)


def _product(one: Iterable[tuple[str, int]], other: Iterable[tuple[str, int]]) -> Powers | None:
    """Return two products multiplied; None where a power would be negative."""
    powers = dict(one)
    for name, power in other:
        powers[name] = powers.get(name, 0) + power
    if min(powers.values(), default=0) < 0:
        return None
    return tuple(sorted((name, power) for name, power in powers.items() if power))
