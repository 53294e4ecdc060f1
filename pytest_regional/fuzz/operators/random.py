"""Random draws: what follows them depends on their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_regional.fuzz.facts import Facts, between, integers
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    Value,
    also,
    anything,
    floating,
    writable,
)


def _draw(name: str, template: str, facts: Any, wanted: Any = floating, **fields: Any) -> Operator:
    return Operator(name, "random", template, (wanted,), facts, draws=True, **fields)


def _size(values: Sequence[Value], picks: Picks) -> Parameters:
    return {"size": 2 + picks.below(3)}


def _dropped(a: Value) -> Facts:
    return between(min(0.0, a.facts.low * 2), max(0.0, a.facts.high * 2), a.facts)


OPERATORS = (
    _draw("rand_like", "torch.rand_like({a})", lambda a: Facts(0, 1)),
    _draw("randn_like", "torch.randn_like({a})", lambda a: Facts(-6, 6)),
    _draw("dropout", "torch.nn.functional.dropout({a}, 0.5)", _dropped, elementwise=True),
    _draw("rand", "torch.rand({size}, {size}, device={a}.device)", lambda a, size: Facts(0, 1), anything, choose=_size),
    _draw(
        "randint",
        "torch.randint(0, 4, ({size},), device={a}.device)",
        lambda a, size: integers(0, 3),
        anything,
        choose=_size,
    ),
    _draw(
        "randperm",
        "torch.randperm({size}, device={a}.device)",
        lambda a, size: integers(0, size - 1, distinct=True),
        anything,
        choose=_size,
    ),
    _draw(
        "uniform_",
        "{a}.uniform_(0.25, 1.0)",
        lambda a: Facts(0.25, 1.0),
        also(floating, writable),
        results=0,
        writes=(0,),
    ),
    _draw("bernoulli", "torch.bernoulli(torch.full_like({a}, 0.5))", lambda a: Facts(0, 1)),
    _draw(
        "noise",
        "{a} + torch.rand_like({a}) * 0.5",
        lambda a: between(a.facts.low, a.facts.high + 0.5, a.facts),
        elementwise=True,
    ),
)
