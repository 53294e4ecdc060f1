"""Normalizations, losses, convolutions and windows over images, and what moves or repeats elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.arguments import ValueRange, between, constant, difference, integers, product
from pytest_regional.fuzz.operators.aten.ranges import (
    ROWS,
    always,
    bounded,
    extreme,
    finite_or_truth,
    float_dtypes,
    moved,
    repeated,
    with_zero,
)
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    ProgramValue,
    Wanted,
    also,
    anything,
    apart,
    at_least,
    dense,
    distinct,
    exact,
    floating,
    no_larger_than,
    nonempty,
    numeric,
    ranked,
    same_dtype,
    same_shape,
    unkinked,
    without_gradient,
    writable,
)
from pytest_regional.fuzz.operators.schemas import Choices, derived


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


def images() -> Iterator[tuple[Operator, ...]]:
    """Yield windows over images, their sizes, and convolutions."""

    def image(dims: int, *conditions: Wanted) -> Wanted:
        return also(numeric, nonempty, ranked(dims + 2, dims + 2), *conditions)

    def windowed(value: ProgramValue, *before: ProgramValue) -> bool:
        # Of a window that dilation leaves without an element eager's backward writes in front of the memory.
        return min(value.shape[2:]) >= 2

    def averaged(
        a: ProgramValue, kernel_size: tuple[int, ...] = (), divisor_override: int | None = None, **parameters: Any
    ) -> ValueRange:
        reach = a.value_range.summed(math.prod(kernel_size)) if divisor_override else a.value_range
        return between(min(reach.low, 0.0), max(reach.high, 0.0), a.value_range)

    for dims in (1, 2, 3):
        yield derived(f"avg_pool{dims}d", "convolution", {"self": image(dims)}, averaged)
        yield derived(f"adaptive_avg_pool{dims}d", "convolution", {"self": image(dims)}, averaged)
        yield derived(f"max_pool{dims}d", "convolution", {"self": image(dims, unkinked, windowed)}, extreme)
        yield derived(
            f"adaptive_max_pool{dims}d",
            "convolution",
            {"self": image(dims, distinct)},
            lambda a, **p: (a.value_range.repeated(), integers(0, a.count)),
        )
        yield derived(
            f"upsample_nearest{dims}d.vec", "convolution", {"input": image(dims)}, repeated, given=_scaled_sizes(dims)
        )
        yield derived(
            f"_upsample_nearest_exact{dims}d.vec",
            "convolution",
            {"input": image(dims)},
            repeated,
            given=_scaled_sizes(dims),
        )
        yield derived(
            f"replication_pad{dims}d", "copy", {"self": image(dims)}, repeated, given={"padding": _paddings(dims)}
        )
        yield derived(
            f"reflection_pad{dims}d", "copy", {"self": image(dims)}, repeated, given={"padding": _paddings(dims)}
        )
        yield derived(
            f"conv{dims}d",
            "convolution",
            {"input": image(dims), "weight": also(image(dims), same_dtype, _weight)},
            _convolved,
            given=_steps(dims),
        )
        yield derived(
            f"conv_transpose{dims}d{'.input' if dims > 1 else ''}",
            "convolution",
            {"input": image(dims), "weight": also(image(dims), same_dtype, lambda v, a: v.shape[0] == a.shape[1])},
            _convolved,
            given=_steps(dims),
        )
    yield derived(
        "max_pool2d_with_indices",
        "convolution",
        {"self": image(2, distinct, windowed)},
        lambda a, **p: (a.value_range.repeated(), integers(0, a.count)),
    )
    smooth = image(2, floating)

    def interpolated(a: ProgramValue, **parameters: Any) -> ValueRange:
        return between(-2 * a.value_range.size, 2 * a.value_range.size, a.value_range)

    for name, dims in (
        ("upsample_linear1d", 1),
        ("upsample_bilinear2d", 2),
        ("upsample_bicubic2d", 2),
        ("upsample_trilinear3d", 3),
        ("_upsample_bilinear2d_aa", 2),
        ("_upsample_bicubic2d_aa", 2),
    ):
        yield derived(
            f"{name}.vec",
            "convolution",
            {"input": also(floating, image(dims))},
            interpolated,
            given=_scaled_sizes(dims),
        )
    yield derived(
        "constant_pad_nd",
        "copy",
        {"self": also(finite_or_truth, ROWS)},
        lambda a, value, **p: a.value_range.join(constant(value)),
        given={"value": always(0, 0.5, -1)},
    )
    yield derived(
        "pad",
        "copy",
        {"self": also(numeric, ranked(3, 4), nonempty)},
        lambda a, mode, value, **p: a.value_range.join(constant(value or 0)),
        given={"value": _only_of_constants},
    )
    yield derived(
        "pixel_unshuffle",
        "convolution",
        {"self": image(2, lambda v, *b: v.shape[2] % 2 == v.shape[3] % 2 == 0)},
        repeated,
    )
    yield derived("pixel_shuffle", "convolution", {"self": image(2, lambda v, *b: v.shape[1] % 4 == 0)}, repeated)
    # Fake tensors have other strides than eager's where the input is channels-last, and share its memory where nothing
    # is exchanged.
    yield derived(
        "channel_shuffle",
        "convolution",
        {"self": image(2, dense, lambda v, *b: v.shape[1] % 4 == 0)},
        repeated,
        given={"groups": always(2)},
    )
    yield derived("im2col", "convolution", {"self": smooth}, lambda a, **p: a.value_range.join(constant(0)))
    yield derived(
        "col2im",
        "convolution",
        {"self": also(numeric, ranked(3, 3), nonempty)},
        lambda a, **p: a.value_range.summed(9),
        given={"output_size": _folded, "kernel_size": always((1, 1))},
    )


def _folded(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[tuple[int, int]]:
    columns = values[0].shape[-1]
    return [(columns, 1), (1, columns), *([(2, columns // 2)] if columns % 2 == 0 else [])]


def _weight(value: ProgramValue, a: ProgramValue) -> bool:
    return (
        value.rank == a.rank
        and a.shape[1] % value.shape[1] == 0
        and all(k <= n + 2 for k, n in zip(value.shape[2:], a.shape[2:], strict=True))
    )


def _convolved(a: ProgramValue, b: ProgramValue, **parameters: Any) -> ValueRange:
    return product(a.value_range, b.value_range).summed(math.prod(b.shape) // min(b.shape[0], b.shape[1]))


def _steps(dims: int) -> dict[str, Choices]:
    def groups(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
        return [values[0].shape[1] // values[1].shape[1]]

    return {"groups": groups}


def _scaled_sizes(dims: int) -> dict[str, Choices]:
    """Return either the size or the factors, of which an operator takes one."""
    return {
        "output_size": always(None, (3,) * dims, tuple(range(2, 2 + dims)), (1,) * dims),
        "scale_factors": lambda values, chosen: (
            ((2.0,) * dims, (1.5,) * dims, (0.5,) * dims) if chosen.get("output_size") is None else (None,)
        ),
    }


def _paddings(dims: int) -> Choices:
    return always((1, 0) * dims, (0, 1) * dims, (1, 1) * dims, (-1, 1) * dims, (0, -1) * dims)


def _only_of_constants(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[float | None]:
    return (None, 0.5, -1.0) if chosen["mode"] == "constant" else (None,)


def movements() -> Iterator[tuple[Operator, ...]]:
    """Yield what moves or repeats elements."""
    rows = {"self": also(anything, ranked(1))}
    square = {"self": also(anything, ranked(2))}
    yield derived(
        "roll",
        "copy",
        rows,
        moved,
        given={
            "shifts": always((1,), (-1,), (3,)),
            "dims": lambda values, chosen: [(dim,) for dim in range(values[0].rank)],
        },
    )
    yield derived("flip", "copy", rows, moved)
    yield derived("rot90", "copy", square, moved, given={"k": always(1, 2, 3, -1), "dims": always((0, 1), (1, 0))})
    yield derived("tril", "copy", square, with_zero, in_place=True)
    yield derived("triu", "copy", square, with_zero)
    yield derived(
        "diag_embed",
        "copy",
        {"self": also(anything, ranked(1, 2))},
        with_zero,
        given={"dim1": always(-2), "dim2": always(-1)},
    )
    yield derived("diagonal_copy", "copy", square, moved, given={"dim1": always(0), "dim2": always(1)})
    yield derived(
        "tile",
        "copy",
        {"self": also(anything, ranked(0, 3))},
        repeated,
        given={"dims": always((2,), (1, 2), (2, 1, 1))},
    )
    yield derived(
        "repeat_interleave.self_int",
        "copy",
        {"self": also(anything, ranked(1, 3))},
        repeated,
        given={
            "repeats": always(2, 3),
            "dim": lambda values, chosen: (None, *range(values[0].rank)),
            "output_size": always(None),
        },
    )
    yield derived(
        "unfold_copy",
        "copy",
        {"self": also(anything, ranked(1, 3), nonempty)},
        repeated,
        given={"size": always(1, 2), "step": always(1, 2)},
    )
