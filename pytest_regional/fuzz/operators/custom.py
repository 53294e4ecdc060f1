"""Custom operators and ``autograd.Function`` classes; their source is in :mod:`pytest_regional.fuzz.definitions`."""

from __future__ import annotations

from typing import Any

from pytest_regional.fuzz.facts import Facts, between, product, total
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Wanted,
    also,
    another,
    apart,
    floating,
    no_larger_than,
    same_dtype,
    same_shape,
    without_gradient,
    writable,
)


def _custom(name: str, template: str, facts: Any, *operands: Wanted, needs: str, **fields: Any) -> Operator:
    return Operator(name, "custom", template, operands, facts, needs=(needs,), **fields)


_TARGET = also(floating, writable, without_gradient)
_OTHER = also(floating, same_dtype, same_shape)

OPERATORS = (
    _custom("custom_scale", "scale({a}, 0.5)", lambda a: a.facts.scaled(0.5), floating, needs="scale"),
    _custom(
        "custom_pair",
        "sum_and_difference({a}, {b})",
        lambda a, b: (total(a.facts, b.facts), total(a.facts, b.facts.scaled(-1.0))),
        floating,
        _OTHER,
        needs="sum_and_difference",
        results=2,
    ),
    _custom(
        "custom_mutating",
        "accumulate({a}, {b})",
        lambda a, b: total(a.facts, b.facts),
        _TARGET,
        also(_OTHER, without_gradient, apart),
        needs="accumulate",
        results=0,
        writes=(0,),
    ),
    _custom(
        "custom_mutating_with_result",
        "scale_in_place({a}, 2.0)",
        lambda a: (a.facts, a.facts.scaled(2.0)),
        _TARGET,
        needs="scale_in_place",
        writes=(0,),
    ),
    _custom(
        "function_doubled_gradient",
        "DoubledGradient.apply({a})",
        lambda a: between(-1, 1, a.facts),
        also(floating, no_larger_than(32)),
        needs="DoubledGradient",
    ),
    _custom(
        "function_of_two",
        "ScaledProduct.apply({a}, {b}, 0.5)",
        lambda a, b: product(a.facts, b.facts).scaled(0.5),
        floating,
        also(_OTHER, another),
        needs="ScaledProduct",
    ),
    _custom(
        "function_straight_through",
        "StraightThrough.apply({a})",
        lambda a: Facts(a.facts.low - 1, a.facts.high + 1, exact=True),
        also(floating, lambda value, *before: value.facts.exact),
        needs="StraightThrough",
    ),
)
