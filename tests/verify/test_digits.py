"""Facts about offsets that count in digits are true for all small numbers, and found where they are needed."""

from __future__ import annotations

import random

import pytest
import torch
import z3

from pytest_regional.verify import PROVED, verifying
from pytest_regional.verify.lemmas import Polynomial, Quotient, digit_lemmas
from pytest_regional.verify.symbols import symbols_of

A, B, C, D = z3.Ints("a b c d")
X, Y, Z = z3.Ints("x#1 y#1 z#1")
Q = [z3.Int(f"quotient#{n}") for n in range(3)]

SIZES, PLACES, SAMPLES = (-1, 0, 1, 2, 3), (-1, 0, 1, 2, 3, 5), 20_000


def twin(expression):
    names = [(one, z3.Int(f"{name}'")) for name, one in symbols_of([expression]).items() if "#" in name]
    return z3.substitute(expression, *names)


def remainder(quotient):
    return quotient.dividend - quotient.divisor * quotient.value


ONCE = Quotient(X, A, Q[0])
AGAIN = Quotient(Q[0], B, Q[1])
AT_ONCE = Quotient(X, A * B, Q[2])
WIDER = Quotient(X, A + 2, Q[0])

#: Offsets, with the quotients of which they are made.
OFFSETS = {
    "rows": (X + A * Y, []),
    "halves": (ONCE.value + A * Y, [ONCE]),
    "remainders": (remainder(ONCE) + A * Y, [ONCE]),
    "halves of columns": (AGAIN.value + B * remainder(ONCE), [ONCE, AGAIN]),
    "quotients of two divisors": (AT_ONCE.value + C * remainder(ONCE), [ONCE, AT_ONCE]),
    "padded rows": (X + (A + 2) * Y, []),
    "every second": (2 * X + 2 * A * Y, []),
    "of another size": (C * X + C * A * Y, []),
    "three axes": (X + A * Y + A * B * Z, []),
    "columns": (ONCE.value + B * remainder(ONCE), [ONCE]),
    "columns of two": (remainder(AGAIN) + B * remainder(ONCE) + A * B * AT_ONCE.value, [ONCE, AGAIN, AT_ONCE]),
    "columns divided twice": (remainder(AGAIN) + B * remainder(ONCE) + A * B * AGAIN.value, [ONCE, AGAIN]),
    "columns of padded rows": (WIDER.value + B * remainder(WIDER), [WIDER]),
    "a part of the rows": (remainder(ONCE) + C * ONCE.value, [ONCE]),
    "shifted": (X - 1 + A * (Y - 2), []),
    "shifted by a size": (X + A * (Y - B), []),
    "shifted remainders": (remainder(ONCE) - 1 + C * (ONCE.value - 1), [ONCE]),
}


def questions(offset):
    """Return what is asked of an offset: whether two are equal, and whether one is in bounds."""
    tops = [A, A * B, A * B * C, B * C, (A + 2) * B, 2 * A * B]
    return [offset == twin(offset), *(offset < top for top in tops)]


def assignments(lemmas, quotients):
    """Yield numbers for all that lemmas mention: any for sizes and variables, the right ones for quotients."""
    divided = [*quotients, *(quotient.twin() for quotient in quotients)]
    values = {quotient.value.decl().name() for quotient in divided}
    named = symbols_of([*lemmas, *(part for q in divided for part in (q.dividend, q.divisor))])
    free = [name for name in named if name not in values]
    divisions = [(q.value.decl().name(), compiled(q.dividend), compiled(q.divisor)) for q in divided]
    draw = random.Random(0)
    for _ in range(SAMPLES):
        found = {name: draw.choice(PLACES if "#" in name else SIZES) for name in free}
        for name, dividend, divisor in divisions:
            # Nothing is known of what is divided by 0.
            found[name] = int(dividend(found) / divisor(found)) if divisor(found) else 77
        yield found


def compiled(expression):
    """Return a Python function of numbers by name that computes an expression."""
    return eval(f"lambda n: {text_of(expression)}")


def text_of(expression):
    parts = [text_of(part) for part in expression.children()]
    kind = expression.decl().kind()
    if z3.is_int_value(expression):
        return str(expression.as_long())
    if not parts:
        return f"n[{expression.decl().name()!r}]" if z3.is_int(expression) else str(z3.is_true(expression))
    if kind == z3.Z3_OP_IMPLIES:
        return f"(not {parts[0]} or {parts[1]})"
    if kind == z3.Z3_OP_UMINUS:
        return f"(-{parts[0]})"
    names = {z3.Z3_OP_ADD: "+", z3.Z3_OP_SUB: "-", z3.Z3_OP_MUL: "*", z3.Z3_OP_AND: " and "}
    names |= {z3.Z3_OP_LT: "<", z3.Z3_OP_LE: "<=", z3.Z3_OP_GT: ">", z3.Z3_OP_GE: ">=", z3.Z3_OP_EQ: "=="}
    return f"({names[kind].join(parts)})"


@pytest.mark.parametrize("name", OFFSETS)
def test_facts_are_true_for_small_numbers(name):
    offset, quotients = OFFSETS[name]
    lemmas = digit_lemmas(questions(offset), quotients)
    said = 0
    for lemma in lemmas:
        check, given = compiled(lemma), compiled(lemma.arg(0))
        numbers = list(assignments([lemma], quotients))
        assert [found for found in numbers if not check(found)] == []
        said += any(map(given, numbers))
    # What is given holds for some numbers: of the equation, and of a limit.
    assert said >= 2


@pytest.mark.parametrize(
    ("whole", "part", "times"),
    [
        (A * B * C, A * C, B),
        ((A + 4) * (B + 2), B + 2, A + 4),
        (6 * A * A - 6 * B * B, 2 * A + 2 * B, 3 * A - 3 * B),
        (A * B + A, B, None),
        (3 * A, 2 * A, None),
        (A, z3.IntVal(0), None),
        (A - A, B, z3.IntVal(0)),
    ],
    ids=str,
)
def test_polynomials_are_divided(whole, part, times):
    found = Polynomial.of(whole).divided(Polynomial.of(part))
    assert (found is None) == (times is None)
    assert found is None or z3.simplify(found.expression() == times, som=True).eq(z3.BoolVal(True))


PROGRAMS = {
    "transpose": (lambda x: x.permute(2, 0, 1).contiguous() * 2, [(5, 6, 7)]),
    "channels last": (lambda x: x.contiguous(memory_format=torch.channels_last) * 2, [(3, 5, 6, 7)]),
    "pad": (lambda x: torch.nn.functional.pad(x, (1, 2, 3, 4)) * 2, [(5, 6, 7)]),
    "cat": (lambda x, y: torch.cat([x * 2, y], 1), [(5, 6, 7), (5, 4, 7)]),
    "batch norm": (
        lambda x, w, b: torch.nn.functional.batch_norm(x, None, None, w, b, training=True),
        [(3, 5, 6, 7), (5,), (5,)],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_with_products_of_sizes_are_proved(emulation, name):
    function, sizes = PROGRAMS[name]
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True), verifying(emulation, 40.0) as verification:
        torch.compile(function, dynamic=True, fullgraph=True)(*map(torch.ones, sizes))
    found = verification.verified()
    outcomes = [outcome for kernel in found for outcome in kernel.outcomes]
    assert {outcome.verdict for outcome in outcomes} == {PROVED}, found
