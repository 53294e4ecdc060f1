"""Windows, images, padding, and what moves elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_regional.fuzz.model.value_range import ValueRange, between, constant, integers, product
from pytest_regional.fuzz.operators.aten.ranges import (
    ROWS,
    always,
    extreme,
    finite_or_truth,
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
    dense,
    distinct,
    floating,
    nonempty,
    numeric,
    ranked,
    same_dtype,
    unkinked,
)
from pytest_regional.fuzz.operators.schemas import Choices, derived


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
