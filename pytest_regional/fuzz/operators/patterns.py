"""What compilers look for by its shape: parts of attention and normalization as people write them by hand.

Positions of extremes are read back through ``gather``: where two elements nearly tie, either position is right, and
the element there is the same within rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pytest_regional.fuzz.model.value_range import ValueRange, product
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    ProgramValue,
    also,
    anything,
    at_least,
    either,
    floating,
    nonempty,
    ranked,
    real,
    same_dtype,
    without_gradient,
)


def _dimension(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank)}


def _one_of_them(a: ProgramValue, dim: int) -> ValueRange:
    return ValueRange(a.value_range.low, a.value_range.high, a.value_range.exact)


def _at_position(name: str, position: str) -> Operator:
    """Return an operator that reads the element at the position of an extreme."""
    wanted = also(floating, ranked(1), nonempty, without_gradient)
    return Operator(name, "sort", f"{{a}}.gather({{dim}}, {position})", (wanted,), _one_of_them, _dimension)


def _batched(value: ProgramValue, a: ProgramValue) -> bool:
    return value.rank == a.rank and value.shape[:-2] == a.shape[:-2] and value.shape[-2] == a.shape[-1]


def _normalized(a: ProgramValue) -> ValueRange:
    return a.value_range.scaled(1 / math.sqrt(1.5))


def _instance(a: ProgramValue) -> ValueRange:
    reach = math.sqrt(math.prod(a.shape[2:]))
    return ValueRange(-reach, reach)


def _repeated(a: ProgramValue) -> ValueRange:
    return a.value_range.repeated()


def _unit(a: ProgramValue, dim: int) -> ValueRange:
    return ValueRange(-1.0, 1.0)


def _products(a: ProgramValue, b: ProgramValue, **parameters: Any) -> ValueRange:
    return product(a.value_range, b.value_range).summed(a.shape[-1])


OPERATORS = (
    Operator(
        "matmul_batched",
        "matmul",
        "{a} @ {b}",
        (also(floating, nonempty, ranked(3, 4)), also(floating, same_dtype, _batched)),
        _products,
        autocast=True,
    ),
    _at_position("value_at_argmax", "{a}.argmax({dim}, keepdim=True)"),
    _at_position("value_at_argmin", "{a}.argmin({dim}, keepdim=True)"),
    _at_position("value_at_max_index", "{a}.max({dim}, keepdim=True)[1]"),
    _at_position("values_by_argsort", "{a}.argsort({dim})"),
    Operator(
        "expand_in_front",
        "view",
        "{a}.unsqueeze(0).expand(3, *{a}.shape)",
        (also(anything, ranked(0, 4)),),
        _repeated,
        autocast=True,
    ),
    Operator(
        "batch_norm_in_eval",
        "norm",
        "torch.nn.functional.batch_norm({a}, torch.zeros({a}.shape[1], dtype={a}.dtype, device={a}.device), "
        "torch.ones({a}.shape[1], dtype={a}.dtype, device={a}.device), eps=0.5)",
        (also(floating, ranked(2, 4), nonempty),),
        _normalized,
    ),
    Operator(
        "instance_norm",
        "norm",
        "torch.nn.functional.instance_norm({a}, eps=0.5)",
        (also(floating, ranked(3, 4), nonempty, lambda value, *before: math.prod(value.shape[2:]) > 1),),
        _instance,
    ),
    Operator(
        "unit_vectors",
        "norm",
        "torch.nn.functional.normalize({a}, dim={dim}, eps=0.5)",
        # The derivative jumps where a vector is as long as eps.
        (also(floating, ranked(1), nonempty, either(without_gradient, at_least(0.6))),),
        _unit,
        _dimension,
    ),
    Operator(
        "sum_by_hand",
        "reduction",
        "sum({a}.unbind(0))",
        (also(real, ranked(1), nonempty, lambda value, *before: value.shape[0] <= 8),),
        lambda a: a.value_range.summed(a.shape[0]),
    ),
)
