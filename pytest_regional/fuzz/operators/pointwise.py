"""Elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pytest_regional.fuzz.facts import Facts, between, difference, integers, product, total
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Picks,
    Value,
    also,
    anything,
    at_least,
    broadcasts,
    exact,
    finite,
    floating,
    no_larger_than,
    same_dtype,
)


def _unary(name: str, template: str, facts: Callable[[Facts], Facts], *conditions: Any) -> Operator:
    wanted = also(floating, *conditions)
    return Operator(name, "pointwise", template, (wanted,), lambda a: facts(a.facts), elementwise=True)


def _binary(name: str, facts: Callable[[Facts, Facts], Facts], *conditions: Any) -> Operator:
    return Operator(
        name,
        "pointwise",
        f"torch.{name}({{a}}, {{b}})",
        (floating, also(floating, same_dtype, broadcasts, *conditions)),
        lambda a, b: facts(a.facts, b.facts),
        elementwise=True,
    )


def _comparison(name: str) -> Operator:
    return Operator(
        name,
        "pointwise",
        f"torch.{name}({{a}}, {{b}})",
        (also(anything, exact), also(anything, exact, same_dtype, broadcasts)),
        lambda a, b: integers(0, 1),
    )


def _constant(values: Sequence[Value], picks: Picks) -> dict[str, Any]:
    return {"value": picks.one_of((2.0, 0.5, -1.0, 3, 1.0))}


OPERATORS = (
    _binary("add", total),
    _binary("mul", product),
    _unary("sin", "torch.sin({a})", lambda a: between(-1, 1, a), no_larger_than(32)),
    _binary("sub", difference),
    Operator(
        "mul_number",
        "pointwise",
        "torch.mul({a}, {value})",
        (floating,),
        lambda a, value: a.facts.scaled(value),
        choose=_constant,
        elementwise=True,
    ),
    _unary("relu", "torch.relu({a})", lambda a: Facts(max(a.low, 0.0), max(a.high, 0.0), a.exact, finite=a.finite)),
    _unary("neg", "torch.neg({a})", lambda a: Facts(-a.high, -a.low, a.exact, a.distinct, a.finite)),
    _unary("abs", "torch.abs({a})", lambda a: Facts(0.0, a.size, a.exact, finite=a.finite)),
    _unary("tanh", "torch.tanh({a})", lambda a: a.within(math.tanh)),
    _unary("exp", "torch.exp({a})", lambda a: a.within(math.exp), no_larger_than(4)),
    _unary("log", "torch.log({a})", lambda a: a.within(math.log), at_least(0.1)),
    _unary("reciprocal", "torch.reciprocal({a})", lambda a: a.within(lambda x: 1 / x), at_least(0.1)),
    _unary("silu", "torch.nn.functional.silu({a})", lambda a: between(-0.3, max(a.high, 0.0), a), finite),
    _unary("gelu", "torch.nn.functional.gelu({a})", lambda a: between(-0.2, max(a.high, 0.0), a), finite),
    _binary("div", lambda a, b: product(a, b.within(lambda x: 1 / x)), at_least(0.1)),
    _binary("maximum", lambda a, b: a.join(b)),
    _comparison("gt"),
    _comparison("eq"),
)
