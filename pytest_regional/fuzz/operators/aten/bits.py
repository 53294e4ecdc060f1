"""Bits, truth values and comparisons, and views of numbers as other numbers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from pytest_regional.fuzz.model.value_range import LIMITS, ValueRange, integers
from pytest_regional.fuzz.operators.aten.ranges import all_bits, always, any_number, finite_or_truth, truth
from pytest_regional.fuzz.operators.operator import (
    Operator,
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
    integer,
    no_larger_than,
    numeric,
    ranked,
    real,
    same_dtype,
    signed,
    without_gradient,
)
from pytest_regional.fuzz.operators.schemas import derived


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
