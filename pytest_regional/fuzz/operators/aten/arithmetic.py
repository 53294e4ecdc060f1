"""Arithmetic, also in place and on lists of tensors; operators on bits; comparisons; numbers viewed as others."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.arguments import (
    LIMITS,
    ValueRange,
    between,
    constant,
    difference,
    integers,
    product,
    total,
    unit_of,
)
from pytest_regional.fuzz.operators.aten.ranges import (
    OTHER,
    Ranges,
    added,
    all_bits,
    always,
    any_number,
    chosen_of_two,
    clamped,
    divided,
    finite_or_truth,
    joined_unsigned,
    multiplied,
    normed,
    positive_divisor,
    raised,
    rest,
    reversed_difference,
    subtracted,
    truth,
)
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    ProgramValue,
    Wanted,
    agreed,
    also,
    anything,
    at_least,
    bits,
    boolean,
    broadcasts,
    either,
    exact,
    floating,
    integer,
    no_larger_than,
    nonempty,
    numeric,
    ranked,
    real,
    same_dtype,
    same_shape,
    signed,
    unkinked,
    unkinked_at,
    without_gradient,
)
from pytest_regional.fuzz.operators.schemas import derived


def arithmetic() -> Iterator[tuple[Operator, ...]]:
    """Yield sums, products, choices of two, and what is made of them."""
    both = {"self": any_number, "other": OTHER}
    of_any = {"self": finite_or_truth, "other": also(finite_or_truth, broadcasts)}
    yield derived("add.Tensor", "pointwise", of_any, added, in_place=True)
    yield derived("sub.Tensor", "pointwise", both, subtracted, in_place=True)
    yield derived("rsub.Tensor", "pointwise", both, reversed_difference)
    yield derived("mul.Tensor", "pointwise", of_any, multiplied, in_place=True)
    one = {"self": any_number}
    yield derived(
        "add.Scalar",
        "pointwise",
        one,
        lambda a, number, alpha: total(a.value_range, constant(number).scaled(alpha)),
        in_place=True,
    )
    yield derived(
        "sub.Scalar",
        "pointwise",
        one,
        lambda a, number, alpha: difference(a.value_range, constant(number).scaled(alpha)),
    )
    yield derived(
        "rsub.Scalar",
        "pointwise",
        one,
        lambda a, number, alpha: difference(constant(number), a.value_range.scaled(alpha)),
    )
    yield derived("mul.Scalar", "pointwise", one, lambda a, number: a.value_range.scaled(number), in_place=True)
    yield derived(
        "neg",
        "pointwise",
        one,
        lambda a: replace(a.value_range, low=-a.value_range.high, high=-a.value_range.low),
        in_place=True,
    )
    yield derived(
        "abs",
        "pointwise",
        {"self": also(any_number, unkinked_at(0.0))},
        lambda a: a.value_range.kept(0, a.value_range.size),
        in_place=True,
    )
    for name in ("maximum", "minimum", "fmax", "fmin"):
        yield derived(name, "pointwise", {"self": any_number, "other": also(OTHER, unkinked)}, chosen_of_two)
    kinks = also(any_number, unkinked_at(-2, -1.0, 0, 0.5, 0.75, 1.0, 1.5, 2, 3))
    bounds = {"min": always(-1.0, 0, -2, None), "max": always(1.0, 2, 0.75, None)}
    yield derived("clamp", "pointwise", {"self": kinks}, clamped, given=bounds, in_place=True)
    yield derived("clamp_min", "pointwise", {"self": kinks}, clamped, given={"min": always(0, -1, 0.5)}, in_place=True)
    yield derived("clamp_max", "pointwise", {"self": kinks}, clamped, given={"max": always(1, 0, 0.5)})
    same = also(OTHER, unkinked)
    yield derived("clamp.Tensor", "pointwise", {"self": any_number, "min": same, "max": same}, joined_unsigned)
    yield derived(
        "square",
        "pointwise",
        {"self": any_number},
        lambda a: product(a.value_range, a.value_range).kept(0, a.value_range.size**2),
    )
    yield derived("sgn", "pointwise", {"self": also(any_number, exact)}, lambda a: integers(-1, 1))
    yield derived(
        "relu",
        "pointwise",
        {"self": also(any_number, unkinked_at(0.0))},
        lambda a: raised(a.value_range, 0),
        in_place=True,
    )
    yield from _division()
    yield from _powers()
    yield from _ternary()


def _division() -> Iterator[tuple[Operator, ...]]:
    exactly = also(any_number, exact)
    divisor = also(any_number, exact, broadcasts, positive_divisor)
    both = {"self": exactly, "other": divisor}

    def floored(a: ProgramValue, b: ProgramValue, **parameters: Any) -> ValueRange:
        return divided(a, b.value_range.low, b.value_range.high)

    def left(a: ProgramValue, b: ProgramValue) -> ValueRange:
        return rest(a, b.value_range.size, b.value_range.unit)

    divisors = _divisors
    yield derived("div.Tensor_mode", "pointwise", both, floored, in_place=True)
    yield derived("floor_divide", "pointwise", both, floored)
    yield derived("remainder.Tensor", "pointwise", both, left, in_place=True)
    yield derived("fmod.Tensor", "pointwise", both, left)

    def floored_by(a: ProgramValue, number: float, **parameters: Any) -> ValueRange:
        return divided(a, number, number)

    def left_by(a: ProgramValue, number: float) -> ValueRange:
        return rest(a, abs(number), unit_of(number))

    one = {"self": exactly}
    given = {"other": divisors}
    yield derived("div.Scalar_mode", "pointwise", one, floored_by, given=given, in_place=True)
    yield derived("floor_divide.Scalar", "pointwise", one, floored_by, given=given)
    yield derived("remainder.Scalar", "pointwise", one, left_by, given=given, in_place=True)
    yield derived("fmod.Scalar", "pointwise", one, left_by, given=given)
    yield derived(
        "div.Tensor",
        "pointwise",
        {"self": finite_or_truth, "other": also(finite_or_truth, broadcasts, positive_divisor)},
        lambda a, b: product(a.value_range, ValueRange(1 / b.value_range.high, 1 / b.value_range.low)),
    )
    yield derived(
        "div.Scalar",
        "pointwise",
        {"self": finite_or_truth},
        lambda a, number: a.value_range.scaled(1 / number),
        given={"other": always(2, 4, -2, 3, 0.5)},
    )


def _divisors(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[float]:
    """Return numbers to divide by: -1 is none of them for integers, whose least one over it traps.

    Of a dtype that cannot hold 0.1, eager divides by what it rounds it to, and Inductor by 0.1: not promised.
    """
    if not values[0].is_float:
        return (2, 3, -2, 7, -3)
    return (2, 3, -2, 0.1, 0.3, 7) if values[0].dtype in ("float32", "float64") else (2, 3, -2, 0.25, 0.375, 7)


def _powers() -> Iterator[tuple[Operator, ...]]:
    def power(a: ProgramValue, exponent: float) -> ValueRange:
        held = a.value_range
        if exponent in (2, 3):
            squared = product(held, held)
            return squared.kept(0, held.size**2) if exponent == 2 else product(squared, held)
        if exponent in (0, 1):
            return constant(1) if exponent == 0 else held
        ends = [max(end, 0.1) ** exponent for end in (held.low, held.high)]
        return between(min(ends), max(ends), held)

    yield derived(
        "pow.Tensor_Scalar",
        "pointwise",
        {"self": any_number},
        lambda a, exponent: power(a, exponent),
        given={"exponent": _exponents},
    )
    yield derived(
        "pow.Scalar",
        "pointwise",
        {"exponent": also(integer, at_least(0), no_larger_than(8))},
        lambda a, number: integers(-(3**8), 3**8),
        given={"self": always(2, -2, -1, 3)},
    )
    yield derived(
        "pow.Tensor_Tensor",
        "pointwise",
        {
            "self": also(integer, no_larger_than(4)),
            "exponent": also(integer, broadcasts, at_least(0), no_larger_than(8)),
        },
        lambda a, b: integers(-(4**8), 4**8),
    )


def _exponents(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[float]:
    a = values[0]
    return (
        (2, 3, 1, 0, 0.5, -1, 1.5)
        if a.is_float and a.value_range.low >= 0.1 and a.value_range.ordinary
        else (2, 3, 1, 0)
    )


def _ternary() -> Iterator[tuple[Operator, ...]]:
    def scaled_product(a: ProgramValue, b: ProgramValue, c: ProgramValue, value: float = 1) -> ValueRange:
        return total(a.value_range, product(b.value_range, c.value_range).scaled(value))

    def scaled_quotient(a: ProgramValue, b: ProgramValue, c: ProgramValue, value: float = 1) -> ValueRange:
        inverse = ValueRange(1 / c.value_range.high, 1 / c.value_range.low)
        return total(a.value_range, product(b.value_range, inverse).scaled(value))

    yield derived(
        "addcmul",
        "pointwise",
        {
            "self": any_number,
            "tensor1": also(any_number, same_dtype, broadcasts),
            "tensor2": also(any_number, same_dtype, broadcasts),
        },
        scaled_product,
        in_place=True,
    )
    yield derived(
        "addcdiv",
        "pointwise",
        {
            "self": floating,
            "tensor1": also(floating, same_dtype, broadcasts),
            "tensor2": also(floating, same_dtype, broadcasts, at_least(0.1)),
        },
        scaled_quotient,
        in_place=True,
    )

    def lerped(a: ProgramValue, b: ProgramValue, *others: ProgramValue, **parameters: Any) -> ValueRange:
        return between(
            min(a.value_range.low, b.value_range.low),
            max(a.value_range.high, b.value_range.high),
            a.value_range,
            b.value_range,
        )

    yield derived(
        "lerp.Scalar",
        "pointwise",
        {"self": floating, "end": also(floating, same_dtype, broadcasts)},
        lerped,
        in_place=True,
    )
    unit = lambda value, *before: value.value_range.low >= 0 and value.value_range.high <= 1  # noqa: E731
    yield derived(
        "lerp.Tensor",
        "pointwise",
        {
            "self": floating,
            "end": also(floating, same_dtype, broadcasts),
            "weight": also(floating, same_dtype, broadcasts, unit),
        },
        lerped,
    )
    yield derived(
        "where.self",
        "pointwise",
        {"condition": boolean, "self": also(finite_or_truth, broadcasts), "other": also(finite_or_truth, broadcasts)},
        lambda a, b, c: chosen_of_two(b, c) if b.dtype != c.dtype else b.value_range.join(c.value_range),
    )
    yield derived(
        "where.ScalarOther",
        "pointwise",
        {"condition": boolean, "self": also(finite_or_truth, broadcasts)},
        lambda a, b, number: b.value_range.join(constant(number)),
    )
    yield derived(
        "masked_fill.Scalar",
        "pointwise",
        {"self": finite_or_truth, "mask": also(boolean, broadcasts)},
        lambda a, b, value: a.value_range.join(constant(value)),
        in_place=True,
    )
    yield derived(
        "masked_fill.Tensor",
        "pointwise",
        {
            "self": any_number,
            "mask": also(boolean, broadcasts),
            "value": lambda v, a, *o: v.shape == () and v.dtype == a.dtype and any_number(v),
        },
        lambda a, b, c: a.value_range.join(c.value_range),
    )
    yield derived(
        "threshold",
        "pointwise",
        {"self": also(any_number, exact)},
        lambda a, threshold, value: replace(a.value_range.join(constant(value)), zeros=False),
        given={"threshold": always(0, 0.5, 1)},
    )
    yield derived(
        "nan_to_num",
        "pointwise",
        {"self": also(real, agreed)},
        _without_nan,
        given={"posinf": always(1.5, 0.5), "neginf": always(-1.5, 0.0)},
    )


def _without_nan(a: ProgramValue, nan: float | None, posinf: float, neginf: float) -> ValueRange:
    return ValueRange(min(a.value_range.low, neginf), max(a.value_range.high, posinf, nan or 0), a.value_range.exact)


def foreach() -> Iterator[tuple[Operator, ...]]:
    """Yield operators on lists of tensors."""
    pair = (numeric, numeric)
    others = tuple(_beside(place) for place in (0, 1))

    def each(rule: Callable[..., ValueRange]) -> Ranges:
        def value_range(*values: ProgramValue, **parameters: Any) -> tuple[ValueRange, ...]:
            half = len(values) // 2
            return tuple(
                rule(values[place].value_range, values[half + place].value_range, **parameters) for place in range(half)
            )

        return value_range

    def each_alone(rule: Callable[..., ValueRange]) -> Ranges:
        return lambda *values, **parameters: tuple(rule(value.value_range, **parameters) for value in values)

    yield derived(
        "_foreach_add.List",
        "pointwise",
        {"self": pair, "other": others},
        each(lambda a, b, alpha: total(a, b.scaled(alpha))),
        in_place=True,
    )
    yield derived(
        "_foreach_sub.List",
        "pointwise",
        {"self": pair, "other": others},
        each(lambda a, b, alpha: difference(a, b.scaled(alpha))),
        in_place=True,
    )
    yield derived("_foreach_mul.List", "pointwise", {"self": pair, "other": others}, each(product), in_place=True)
    yield derived(
        "_foreach_maximum.List",
        "pointwise",
        {"self": pair, "other": tuple(also(one, _unkinked_with(place)) for place, one in enumerate(others))},
        each(lambda a, b: replace(a.join(b), zeros=False)),
        in_place=True,
    )
    yield derived(
        "_foreach_add.Scalar",
        "pointwise",
        {"self": pair},
        each_alone(lambda a, number: total(a, constant(number))),
        in_place=True,
    )
    yield derived(
        "_foreach_mul.Scalar",
        "pointwise",
        {"self": pair},
        each_alone(lambda a, number: a.scaled(number)),
        in_place=True,
    )
    yield derived(
        "_foreach_div.Scalar",
        "pointwise",
        {"self": pair},
        each_alone(lambda a, number: a.scaled(1 / number)),
        given={"scalar": always(2, 4, 0.5, 3)},
        in_place=True,
    )

    def listed(rule: Callable[[ValueRange, float], ValueRange]) -> Ranges:
        return lambda *values, scalars: tuple(
            rule(value.value_range, number) for value, number in zip(values, scalars, strict=True)
        )

    lists = {"scalars": always((2, 3), (0.5, -1), (1, 0))}
    yield derived(
        "_foreach_add.ScalarList",
        "pointwise",
        {"self": pair},
        listed(lambda a, number: total(a, constant(number))),
        given=lists,
        in_place=True,
    )
    yield derived(
        "_foreach_mul.ScalarList",
        "pointwise",
        {"self": pair},
        listed(lambda a, number: a.scaled(number)),
        given=lists,
        in_place=True,
    )
    yield derived(
        "_foreach_neg",
        "pointwise",
        {"self": pair},
        each_alone(lambda a: replace(a, low=-a.high, high=-a.low)),
        in_place=True,
    )
    yield derived(
        "_foreach_abs",
        "pointwise",
        {"self": (also(numeric, unkinked_at(0.0)),) * 2},
        each_alone(lambda a: a.kept(0, a.size)),
        in_place=True,
    )
    positive = (also(floating, at_least(0.1)),) * 2
    yield derived(
        "_foreach_sqrt", "pointwise", {"self": positive}, each_alone(lambda a: a.within(math.sqrt)), in_place=True
    )
    yield derived(
        "_foreach_exp",
        "pointwise",
        {"self": (also(floating, no_larger_than(4)),) * 2},
        each_alone(lambda a: a.within(math.exp)),
        in_place=True,
    )
    yield derived(
        "_foreach_lerp.Scalar",
        "pointwise",
        {"self": (floating,) * 2, "tensors1": tuple(also(floating, one) for one in others)},
        each(lambda a, b, weight: between(min(a.low, b.low), max(a.high, b.high), a, b)),
        in_place=True,
    )
    one = {
        "self": (numeric,),
        "tensor1": (also(numeric, same_dtype, same_shape),),
        "tensor2": (also(numeric, same_dtype, same_shape),),
    }

    def scaled_product(a: ProgramValue, b: ProgramValue, c: ProgramValue, value: float) -> ValueRange:
        return total(a.value_range, product(b.value_range, c.value_range).scaled(value))

    yield derived("_foreach_addcmul.Scalar", "pointwise", one, scaled_product, in_place=True)
    yield derived(
        "_foreach_norm.Scalar",
        "reduction",
        {"self": (also(floating, nonempty, at_least(0.1)),) * 2},
        lambda a, b, **p: (normed(a), normed(b)),
        given={"ord": always(2, 1), "dtype": always(None)},
    )
    yield derived(
        "_foreach_copy", "pointwise", {"self": pair, "src": others}, each(lambda a, b: b.repeated()), in_place=True
    )


def _beside(place: int) -> Wanted:
    """Return the condition of dtype and shape of the tensor at ``place`` of the list before."""
    return lambda value, *before: (
        numeric(value) and value.dtype == before[place].dtype and value.shape == before[place].shape
    )


def _unkinked_with(place: int) -> Wanted:
    return lambda value, *before: unkinked(value, before[place])


def bitwise() -> Iterator[tuple[Operator, ...]]:
    """Yield operators on bits and truth values."""
    whole = either(integer, boolean)
    both = {"self": whole, "other": also(whole, same_dtype, broadcasts)}
    for name in ("and", "or", "xor"):
        yield derived(f"bitwise_{name}.Tensor", "integer", both, all_bits, in_place=True)
        yield derived(
            f"bitwise_{name}.Scalar",
            "integer",
            {"self": integer},
            lambda a, number: integers(*LIMITS[a.dtype]),
            given={"other": always(1, 3, 6, -1)},
        )
        yield derived(
            f"logical_{name}",
            "integer",
            {"self": also(anything, exact), "other": also(anything, exact, broadcasts)},
            truth,
        )
    yield derived("bitwise_not", "integer", {"self": whole}, _all_limits, in_place=True)
    yield derived("logical_not", "integer", {"self": also(anything, exact)}, truth)
    shift = also(integer, same_dtype, broadcasts, at_least(0), no_larger_than(6))
    yield derived(
        "bitwise_left_shift.Tensor",
        "integer",
        {"self": integer, "other": shift},
        lambda a, b: integers(a.value_range.low * 64, a.value_range.high * 64),
        in_place=True,
    )
    yield derived(
        "bitwise_right_shift.Tensor",
        "integer",
        {"self": integer, "other": shift},
        lambda a, b: a.value_range.repeated(),
    )
    yield derived(
        "bitwise_left_shift.Tensor_Scalar",
        "integer",
        {"self": integer},
        lambda a, number: integers(a.value_range.low * 2**number, a.value_range.high * 2**number),
        given={"other": always(1, 2, 5)},
    )
    yield derived(
        "bitwise_right_shift.Tensor_Scalar",
        "integer",
        {"self": integer},
        lambda a, number: a.value_range.repeated(),
        given={"other": always(1, 2, 5)},
    )
    small = also(integer, no_larger_than(1000))
    yield derived(
        "gcd",
        "integer",
        {"self": small, "other": also(small, same_dtype, broadcasts)},
        lambda a, b: integers(0, max(a.value_range.size, b.value_range.size)),
    )
    yield derived(
        "lcm",
        "integer",
        {"self": small, "other": also(small, same_dtype, broadcasts)},
        lambda a, b: integers(-a.value_range.size * b.value_range.size, a.value_range.size * b.value_range.size),
    )


def _all_limits(a: ProgramValue) -> ValueRange:
    return integers(0, 1) if a.is_bool else integers(*LIMITS[a.dtype])


def comparisons() -> Iterator[tuple[Operator, ...]]:
    """Yield comparisons of values that all implementations agree on."""
    exactly = also(finite_or_truth, exact)
    # An integer and a float are compared in the float's dtype, which may not hold the integer.
    held = also(
        exactly, broadcasts, lambda b, a: a.dtype == b.dtype or max(a.value_range.size, b.value_range.size) <= 256
    )
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield derived(f"{name}.Tensor", "comparison", {"self": exactly, "other": held}, truth)
        yield derived(f"{name}.Scalar", "comparison", {"self": exactly}, truth)
    for name in ("isnan", "isinf", "isposinf", "isneginf", "isfinite"):
        yield derived(name, "comparison", {"self": also(anything, agreed)}, truth)
    yield derived(
        "isin.Tensor_Tensor",
        "comparison",
        {"elements": exactly, "test_elements": also(exactly, same_dtype)},
        truth,
        given={"assume_unique": always(False), "invert": always(False, True)},
    )
    yield derived("signbit", "comparison", {"self": also(any_number, signed)}, truth)


def bit_views() -> Iterator[Operator]:
    """Yield views of numbers as other numbers, and casts there and back."""
    for source, target in (("float32", "int32"), ("float16", "int16"), ("bfloat16", "int16"), ("float64", "int64")):
        wanted = also(real, bits, without_gradient, _of_dtype(source))
        yield Operator(
            f"bits_of_{source}", "cast", f"{{a}}.view(torch.{target})", (wanted,), functools.partial(_limits_of, target)
        )
    yield Operator(
        "bits_of_int64",
        "cast",
        "{a}.view(torch.int32)",
        (also(integer, lambda v, *b: v.dtype == "int64", ranked(1)),),
        functools.partial(_limits_of, "int32"),
    )
    yield Operator(
        "rounded_twice",
        "cast",
        "{a}.to(torch.float16).to(torch.float32)",
        (also(numeric, exact, lambda v, *b: v.dtype == "float32" and v.value_range.size < 60000),),
        lambda a: _widened(a.value_range),
    )
    yield Operator(
        "rounded_to_bfloat16",
        "cast",
        "{a}.to(torch.bfloat16).to(torch.float32)",
        (also(numeric, exact, lambda v, *b: v.dtype == "float32"),),
        lambda a: _widened(a.value_range),
    )


def _widened(value_range: ValueRange) -> ValueRange:
    """Return the range of elements that are rounded to a narrower dtype and back."""
    reach = value_range.size / 128
    return replace(value_range.kept(value_range.low - reach, value_range.high + reach), unit=None)


def _of_dtype(dtype: str) -> Wanted:
    """Return the condition of finite elements of ``dtype``: NaN has many bit patterns."""
    return lambda value, *before: value.dtype == dtype and value.value_range.finite


def _limits_of(dtype: str, a: ProgramValue) -> ValueRange:
    return integers(*LIMITS[dtype])
