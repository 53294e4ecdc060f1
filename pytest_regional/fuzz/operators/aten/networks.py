"""Normalizations and losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.value_range import ValueRange, between, difference, product
from pytest_regional.fuzz.operators.aten.ranges import ROWS, always, bounded, float_dtypes
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    ProgramValue,
    also,
    apart,
    at_least,
    exact,
    floating,
    no_larger_than,
    nonempty,
    ranked,
    same_dtype,
    same_shape,
    unkinked,
    without_gradient,
    writable,
)
from pytest_regional.fuzz.operators.schemas import derived


def normalizations() -> Iterator[tuple[Operator, ...]]:
    """Yield normalizations and similarities."""
    rows = {"self": also(floating, ROWS)}
    yield derived("softmax.int", "norm", rows, bounded(0, 1), given={"dtype": float_dtypes})
    yield derived(
        "log_softmax.int",
        "norm",
        rows,
        lambda a, **p: between(a.value_range.low - a.value_range.high - math.log(max(a.count, 1)), 0, a.value_range),
        given={"dtype": float_dtypes},
    )
    like = also(floating, same_dtype, same_shape)
    apart_from_zero = also(floating, ROWS, at_least(0.1))
    yield derived(
        "cosine_similarity",
        "norm",
        {"x1": apart_from_zero, "x2": also(apart_from_zero, same_dtype, same_shape)},
        bounded(-1.1, 1.1),
        given={"eps": always(1e-8)},
    )
    yield derived(
        "pairwise_distance",
        "norm",
        {"x1": also(floating, ranked(2, 2), nonempty, without_gradient), "x2": also(like, without_gradient)},
        lambda a, b, **p: between(0, (a.value_range.size + b.value_range.size + 1) * a.count, a.value_range),
        given={"eps": always(0.5, 1.0), "p": always(2.0, 1.0)},
    )
    channels = _per_channel
    image = also(floating, nonempty, ranked(3, 5))
    # A small eps beside a variance of zero would make rounding errors as large as values.
    eps = {"eps": always(0.5, 1.0)}

    def groups(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
        return [count for count in (1, 2, 3) if values[0].shape[1] % count == 0]

    def scaled(a: ProgramValue, b: ProgramValue, c: ProgramValue, **parameters: Any) -> ValueRange:
        reach = math.sqrt(max(a.count, 1)) * b.value_range.size + c.value_range.size
        return between(-reach, reach, a.value_range)

    yield derived(
        "group_norm",
        "norm",
        {"input": image, "weight": channels, "bias": channels},
        scaled,
        given={**eps, "num_groups": groups},
    )
    last = _per_column
    shape = {"normalized_shape": lambda values, chosen: (values[0].shape[-1:],)}
    yield derived(
        "layer_norm",
        "norm",
        {"input": also(floating, ROWS), "weight": last, "bias": last},
        scaled,
        given={**eps, **shape},
    )
    yield derived(
        "rms_norm",
        "norm",
        {"input": also(floating, ROWS), "weight": last},
        lambda a, b, **p: scaled(a, b, b),
        given={**eps, **shape},
    )


def _per_channel(value: ProgramValue, a: ProgramValue, *others: ProgramValue) -> bool:
    return floating(value) and value.dtype == a.dtype and value.shape == a.shape[1:2]


def _per_column(value: ProgramValue, a: ProgramValue, *others: ProgramValue) -> bool:
    return floating(value) and value.dtype == a.dtype and value.shape == a.shape[-1:]


def _class_of_each_row(value: ProgramValue, a: ProgramValue, *others: ProgramValue) -> bool:
    held = value.value_range
    return value.dtype == "int64" and value.shape == a.shape[:1] and held.low >= 0 and held.high < a.shape[1]


def with_statistics() -> Iterator[Operator]:
    """Yield normalizations that write to their running statistics, which their schema does not tell."""
    spread = also(floating, nonempty, ranked(3, 5), lambda v, *b: v.shape[0] * v.shape[-1] > 1)
    statistic = also(_per_channel, writable, without_gradient, apart)
    positive = also(statistic, at_least(0.1))

    def ranges(a: ProgramValue, b: ProgramValue, c: ProgramValue, **parameters: Any) -> tuple[ValueRange, ...]:
        reach = math.sqrt(max(a.count, 1))
        mean = between(
            min(a.value_range.low, b.value_range.low), max(a.value_range.high, b.value_range.high), a.value_range
        )
        variance = between(0, max(2 * (a.value_range.high - a.value_range.low) ** 2, c.value_range.high), a.value_range)
        return between(-reach, reach, a.value_range), mean, variance

    for name, keyword in (("batch_norm", "training=True"), ("instance_norm", "use_input_stats=True")):
        yield Operator(
            f"{name}_with_statistics",
            "norm",
            f"torch.nn.functional.{name}({{a}}, {{b}}, {{c}}, {keyword}, momentum={{momentum}}, eps=0.5)",
            (spread, statistic, positive),
            ranges,
            lambda values, picks: {"momentum": picks.one_of((0.1, 0.5))},
            writes=(1, 2),
        )


def losses() -> Iterator[tuple[Operator, ...]]:
    """Yield losses."""
    first = also(floating, ROWS)
    like = also(floating, same_dtype, same_shape)
    classes = _class_of_each_row
    rows = also(floating, ranked(2, 2), nonempty)
    weight = also(_per_channel, at_least(0.1), without_gradient)
    without = also(like, without_gradient)

    def apart_by(
        a: ProgramValue, b: ProgramValue, *others: ProgramValue, reduction: int = 1, **parameters: Any
    ) -> ValueRange:
        size = a.value_range.size + b.value_range.size + 4
        return between(-4 * size, 4 * size, a.value_range).summed(a.count if reduction == 2 else 1)

    def squared(a: ProgramValue, b: ProgramValue, reduction: int = 1, **parameters: Any) -> ValueRange:
        apart_ = difference(a.value_range, b.value_range)
        square = product(apart_, apart_).kept(0, apart_.size**2)
        if reduction == 2:
            return square.summed(max(a.count, 1))
        return square if reduction == 0 else replace(square, unit=None)

    yield derived("mse_loss", "norm", {"self": first, "target": like}, squared)
    for name in ("l1_loss", "smooth_l1_loss", "huber_loss"):
        given = {"beta": always(1.0, 0.5), "delta": always(1.0, 0.5)}
        yield derived(name, "norm", {"self": first, "target": also(like, unkinked)}, apart_by, given=given)

    def likelihood(a: ProgramValue, b: ProgramValue, reduction: int = 1, **parameters: Any) -> ValueRange:
        reach = 60 + 5 * b.value_range.size
        return between(-reach, reach, a.value_range).summed(a.count if reduction == 2 else 1)

    chance = lambda v, *b: v.value_range.low >= 0 and v.value_range.high <= 1  # noqa: E731
    inside = also(first, at_least(0.1), no_larger_than(0.9))
    yield derived("binary_cross_entropy", "norm", {"self": inside, "target": also(without, chance)}, apart_by)
    yield derived(
        "binary_cross_entropy_with_logits",
        "norm",
        {
            "self": first,
            "target": also(without, chance),
            "pos_weight": lambda v, a, *o: (
                floating(v)
                and v.dtype == a.dtype
                and v.shape == a.shape[-1:]
                and v.value_range.low >= 0.1
                and v.value_range.high <= 2
                and without_gradient(v)
            ),
        },
        lambda a, b, c, **p: apart_by(a, b, **p).scaled(3),
    )
    yield derived("nll_loss_nd", "norm", {"self": rows, "target": classes}, apart_by, given={"ignore_index": _ignored})
    yield derived(
        "cross_entropy_loss",
        "norm",
        {"self": rows, "target": classes, "weight": weight},
        lambda a, b, c, **p: apart_by(a, a, **p).scaled(max(1.0, c.value_range.high)),
        given={"ignore_index": _ignored},
    )
    yield derived(
        "kl_div",
        "norm",
        {"self": first, "target": also(without, at_least(0.1), no_larger_than(2))},
        lambda a, b, reduction, **p: apart_by(a, b, reduction=reduction).scaled(8.0),
    )
    sign = also(without, exact)
    yield derived(
        "soft_margin_loss",
        "norm",
        {"self": also(first, no_larger_than(8)), "target": also(sign, no_larger_than(3))},
        lambda a, b, **p: apart_by(a, b, **p).scaled(8),
    )
    yield derived(
        "margin_ranking_loss",
        "norm",
        {"input1": also(first, exact), "input2": also(like, exact), "target": lambda v, a, b: sign(v, a)},
        lambda a, b, c, **p: apart_by(a, b, **p).scaled(max(1, c.value_range.size)),
    )
    yield derived(
        "multi_margin_loss",
        "norm",
        {"self": also(rows, exact), "target": classes},
        lambda a, b, **p: apart_by(a, a, **p).scaled(16),
        given={"p": always(1, 2), "margin": always(1, 0.5)},
    )
    yield derived(
        "multilabel_margin_loss",
        "norm",
        {
            "self": also(rows, exact),
            "target": lambda v, a: (
                v.dtype == "int64"
                and v.shape == a.shape
                and v.value_range.low >= -1
                and v.value_range.high < a.shape[1]
            ),
        },
        lambda a, b, **p: apart_by(a, a, **p).scaled(a.count),
    )
    yield derived(
        "poisson_nll_loss",
        "norm",
        {"input": also(first, at_least(0.1), no_larger_than(4)), "target": also(without, at_least(1.1))},
        likelihood,
        given={"log_input": always(True, False), "full": always(False), "eps": always(1e-8)},
    )
    near = also(rows, no_larger_than(4), without_gradient, lambda v, *b: v.shape[1] <= 16)
    # Of a margin that no distance reaches, so that no row is on the kink.
    yield derived(
        "triplet_margin_loss",
        "norm",
        {
            "anchor": near,
            "positive": also(near, same_dtype, same_shape),
            "negative": also(near, same_dtype, same_shape),
        },
        lambda a, b, c, reduction, **p: between(0, 256, a.value_range).summed(a.count if reduction == 2 else 1),
        given={"eps": always(0.5), "margin": always(160.0), "p": always(2.0, 1.0)},
    )
    yield derived(
        "cosine_embedding_loss",
        "norm",
        {
            "input1": also(rows, at_least(0.1)),
            "input2": also(like, at_least(0.1)),
            "target": lambda v, a, b: (
                v.dtype == a.dtype
                and v.shape == a.shape[:1]
                and without_gradient(v)
                and floating(v)
                and v.value_range.exact
            ),
        },
        lambda a, *o, reduction, **p: between(0, 2.5, a.value_range).summed(a.count if reduction == 2 else 1),
        given={"margin": always(0.0)},
    )


def _ignored(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    """Return classes to ignore: none where a mean, over no rows at all, would be NaN."""
    return (-100,) if chosen["reduction"] == 1 else (-100, 0, 1)
