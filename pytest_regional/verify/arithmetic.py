"""The values of kernels and of graphs as real numbers: what both sides call the same operation by the same name.

Rounding is left out. Of functions such as ``exp`` nothing is known but that equal arguments give equal results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import z3

from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.symbols import Expression

REAL = z3.RealSort()

_SIMPLE = 10_000


def real(value: float) -> Expression:
    """Return a number: a simple fraction where it was rounded from one.

    Infinities, and what is no number, are numbers of which nothing is known.
    """
    if math.isfinite(value):
        simple = Fraction(value).limit_denominator(_SIMPLE)
        return z3.RealVal(simple if float(simple) == value else Fraction(value))
    return z3.Real(f"float {value!r}")


LOWEST, HIGHEST = real(-math.inf), real(math.inf)


def function(name: str, *arguments: Expression) -> Expression:
    """Return the value of a function of which nothing is known."""
    return z3.Function(name, *(argument.sort() for argument in arguments), REAL)(*arguments)


def as_real(value: Expression) -> Expression:
    """Return a truth value, or an integer, as a number."""
    if z3.is_bool(value):
        return z3.If(value, z3.RealVal(1), z3.RealVal(0))
    return z3.ToReal(value) if z3.is_int(value) else value


def as_integer(value: Expression) -> Expression:
    """Return a truth value as an integer, and a number without its fraction."""
    if z3.is_bool(value):
        return z3.If(value, z3.IntVal(1), z3.IntVal(0))
    if z3.is_int(value):
        return value
    if z3.is_rational_value(value):
        return z3.IntVal(math.trunc(Fraction(value.as_fraction())))
    return z3.Function("integer part", REAL, z3.IntSort())(value)


def as_truth(value: Expression) -> Expression:
    """Return whether a number is not zero."""
    return value if z3.is_bool(value) else value != 0


def divided(left: Expression, right: Expression) -> Expression:
    """Divide numbers."""
    right = z3.simplify(right)
    if z3.is_rational_value(right) and not right.eq(z3.RealVal(0)):
        return left * (1 / right)
    return left * function("reciprocal", right)


def larger(left: Expression, right: Expression) -> Expression:
    """Return the larger of two."""
    return z3.If(left > right, left, right)


def smaller(left: Expression, right: Expression) -> Expression:
    """Return the smaller of two."""
    return z3.If(left < right, left, right)


def absolute(value: Expression) -> Expression:
    """Return the absolute value."""
    return z3.If(value >= 0, value, -value)


def sigmoid(value: Expression) -> Expression:
    """Return ``1 / (1 + exp(-value))``."""
    return function("reciprocal", 1 + function("exp", -value))


def power(base: Expression, exponent: Expression) -> Expression:
    """Return a power; small whole ones are products."""
    plain = z3.simplify(exponent)
    if z3.is_rational_value(plain):
        number = plain.as_fraction()
        if number.denominator == 1 and 0 <= number <= 4:
            return math.prod([base] * int(number), start=z3.RealVal(1))
        if number == Fraction(1, 2):
            return function("sqrt", base)
        if number == Fraction(-1, 2):
            return function("reciprocal", function("sqrt", base))
        if number == -1:
            return function("reciprocal", base)
        if number == -2:
            return function("reciprocal", base * base)
    return function("pow", base, exponent)


# What Triton's language, and CUDA's library, call an operation. Names that lack here stand for themselves.
_OPERATIONS: dict[str, Callable[..., Expression]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": divided,
    "negative": lambda a: -a,
    "fma": lambda a, b, c: a * b + c,
    "fmul_rn": lambda a, b: a * b,
    "fadd_rn": lambda a, b: a + b,
    "fabs": absolute,
    "abs": absolute,
    "absolute": absolute,
    "minimum": smaller,
    "fmin": smaller,
    "maximum": larger,
    "fmax": larger,
    "clamp": lambda a, low, high: smaller(larger(a, low), high),
    "rsqrt": lambda a: function("reciprocal", function("sqrt", a)),
    "pow": power,
    "isnan": lambda a: z3.IntVal(0),
    "isinf": lambda a: z3.IntVal(0),
    "llrint": lambda a: as_integer(function("nearbyint", a)),
}
_COMPARISONS: dict[str, Callable[..., Expression]] = {
    "LT": lambda a, b: a < b,
    "GT": lambda a, b: a > b,
    "LE": lambda a, b: a <= b,
    "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
}
_FLOATS = ("fp", "bf")


def operation_of_kernel(name: str, arguments: list[Expression]) -> Expression:
    """Return what an operation of a kernel computes.

    Args:
        name: as the builder calls it: the operation, the types of its operands, and of its result.
        arguments: numbers.

    Raises:
        NotVerifiableError: it is not one of numbers.
    """
    operation, *types = name.rsplit("_", len(arguments) + 1)
    result = types[-1]
    if operation == "converted":
        return _converted(arguments[0], result)
    if operation.startswith("fcmp"):
        return _COMPARISONS[operation[-2:]](*map(as_real, arguments))
    if not all(kind.startswith(_FLOATS) for kind in types[:-1]):
        raise NotVerifiableError(f"{operation} of {', '.join(types[:-1])}")
    plain = _plain_name(operation)
    value = _OPERATIONS[plain](*arguments) if plain in _OPERATIONS else function(plain, *arguments)
    if result.startswith(_FLOATS):
        return as_real(value)
    if z3.is_int(value):
        return value
    raise NotVerifiableError(f"{operation}, which makes {result} of floats")


def _plain_name(operation: str) -> str:
    if not operation.startswith("__nv_"):
        return operation
    name = operation.removeprefix("__nv_")
    if name.startswith(("isnan", "isinf")):
        return name[:5]
    # What ends with the letter itself, and what has it to tell the type.
    return name if name in ("erf", "normcdf") else name.removesuffix("f")


def _converted(value: Expression, kind: str) -> Expression:
    if kind.startswith(_FLOATS):
        return as_real(value)
    return as_truth(value) if kind == "int1" else as_integer(value)


def number_of_kernel(name: str) -> Expression:
    """Return a constant as the builder names it: ``float 0.5``."""
    return real(float(name.removeprefix("float ")))
