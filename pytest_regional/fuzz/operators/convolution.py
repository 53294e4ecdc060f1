"""Convolutions, pooling and resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pytest_regional.fuzz.facts import Facts, product, total
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    Value,
    Wanted,
    also,
    anything,
    distinct,
    floating,
    nonempty,
    ranked,
    same_dtype,
)


def _convolution(name: str, template: str, facts: Any, *operands: Wanted, choose: Any = None) -> Operator:
    fields = {} if choose is None else {"choose": choose}
    return Operator(name, "convolution", template, operands, facts, **fields)


def _settings(values: Sequence[Value], picks: Picks) -> Parameters:
    return {"stride": 1 + picks.below(2), "padding": picks.below(2)}


def _weight(value: Value, a: Value, *others: Value) -> bool:
    # Channels agree, and the kernel is no larger than the image.
    return value.rank == a.rank and value.shape[1] == a.shape[1] and _no_larger(value, a)


def _no_larger(value: Value, a: Value) -> bool:
    return all(ours <= theirs for ours, theirs in zip(value.shape[2:], a.shape[2:], strict=True))


def _weight_of_one(value: Value, a: Value) -> bool:
    return value.rank == a.rank and value.shape[:2] == (a.shape[1], 1) and _no_larger(value, a)


def _transposed_weight(value: Value, a: Value) -> bool:
    return value.rank == a.rank and value.shape[0] == a.shape[1]


def _bias(value: Value, a: Value, b: Value) -> bool:
    return value.dtype == a.dtype and value.shape == b.shape[:1]


def _summed(a: Value, b: Value, **parameters: Any) -> Facts:
    return product(a.facts, b.facts).summed(math.prod(b.shape) // min(b.shape[0], b.shape[1]))


def _added(a: Value, b: Value, c: Value, **parameters: Any) -> Facts:
    return total(_summed(a, b), c.facts)


def _averaged(a: Value) -> Facts:
    return Facts(min(a.facts.low, 0.0), max(a.facts.high, 0.0))


def _kept(a: Value) -> Facts:
    return a.facts.repeated()


_LINES = also(floating, nonempty, ranked(3, 3))
_IMAGES = also(floating, nonempty, ranked(4, 4))
_LARGE = also(_IMAGES, lambda value, *before: min(value.shape[2:]) >= 2)

OPERATORS = (
    _convolution(
        "conv2d",
        "torch.nn.functional.conv2d({a}, {b}, stride={stride}, padding={padding})",
        _summed,
        _IMAGES,
        also(floating, same_dtype, _weight),
        choose=_settings,
    ),
    _convolution(
        "conv2d_bias",
        "torch.nn.functional.conv2d({a}, {b}, {c}, padding={padding}, stride={stride})",
        _added,
        _IMAGES,
        also(floating, same_dtype, _weight),
        also(floating, _bias),
        choose=_settings,
    ),
    _convolution(
        "conv1d",
        "torch.nn.functional.conv1d({a}, {b}, padding=1)",
        _summed,
        _LINES,
        also(floating, same_dtype, _weight),
    ),
    _convolution(
        "conv_depthwise",
        "torch.nn.functional.conv2d({a}, {b}, groups={b}.shape[0])",
        _summed,
        _IMAGES,
        also(floating, same_dtype, _weight_of_one),
    ),
    _convolution(
        "conv_transpose2d",
        "torch.nn.functional.conv_transpose2d({a}, {b})",
        _summed,
        _IMAGES,
        also(floating, same_dtype, _transposed_weight),
    ),
    _convolution("avg_pool2d", "torch.nn.functional.avg_pool2d({a}, 2)", _averaged, _LARGE),
    _convolution("max_pool2d", "torch.nn.functional.max_pool2d({a}, 2)", _kept, also(_LARGE, distinct)),
    _convolution("adaptive_pool", "torch.nn.functional.adaptive_avg_pool2d({a}, 1)", _averaged, _IMAGES),
    _convolution("upsample", 'torch.nn.functional.interpolate({a}, scale_factor=2.0, mode="nearest")', _kept, _IMAGES),
    _convolution(
        "pixel_unshuffle",
        "torch.nn.functional.pixel_unshuffle({a}, 2)",
        _kept,
        also(_IMAGES, lambda value, *before: value.shape[2] % 2 == value.shape[3] % 2 == 0),
    ),
    _convolution("channel_shuffle", "{a}.reshape({a}.shape[0], 1, -1).mT", _kept, also(anything, ranked(3), nonempty)),
)
