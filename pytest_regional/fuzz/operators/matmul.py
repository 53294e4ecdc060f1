"""Products of matrices, and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pytest_regional.fuzz.model.arguments import ValueRange, between, product, total
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    ProgramValue,
    Wanted,
    also,
    anything,
    distinct,
    floating,
    matrix_of,
    nonempty,
    numeric,
    ranked,
    same_dtype,
)


def _summed(a: ProgramValue, b: ProgramValue) -> ValueRange:
    return product(a.value_range, b.value_range).summed(a.shape[-1])


def _family(name: str, template: str, operands: tuple[Wanted, ...], value_range: Any = _summed) -> Operator:
    return Operator(name, "matmul", template, operands, value_range, autocast=True)


def _of(rank: int) -> Wanted:
    return also(numeric, nonempty, ranked(rank, rank))


def _batched(value: ProgramValue, *before: ProgramValue) -> bool:
    first = before[0].shape
    return value.shape[:-2] == first[:-2] and value.shape[-2] == first[-1]


def _rows_of(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.shape[-1] == before[0].shape[-1]


def _vector_of(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.shape == before[0].shape[-1:]


def _third_fits(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
    return value.dtype == a.dtype and value.shape in ((b.shape[-1],), (a.shape[0], b.shape[-1]), (1, b.shape[-1]))


def _bias_of_rows(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
    return value.dtype == a.dtype and value.shape == b.shape[:1]


def _batched_third(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
    return value.dtype == a.dtype and value.rank == 3 and value.shape == (*a.shape[:2], b.shape[2])


def _added(a: ProgramValue, b: ProgramValue, c: ProgramValue) -> ValueRange:
    return total(_summed(a, b), c.value_range)


def _attended(a: ProgramValue, b: ProgramValue, c: ProgramValue) -> ValueRange:
    return ValueRange(c.value_range.low, c.value_range.high, finite=c.value_range.finite)


_HEADS = also(floating, _of(4))
_ATTENTION = (_HEADS, also(_HEADS, same_dtype, lambda value, a, *others: value.shape == a.shape))

_PRODUCTS = (
    _family("mm", "torch.mm({a}, {b})", (_of(2), also(_of(2), same_dtype, matrix_of))),
    _family("matmul", "{a} @ {b}", (also(numeric, nonempty, ranked(1)), also(_of(2), same_dtype, matrix_of))),
    _family("bmm", "torch.bmm({a}, {b})", (_of(3), also(_of(3), same_dtype, _batched))),
    _family("mv", "torch.mv({a}, {b})", (_of(2), also(_of(1), same_dtype, _vector_of))),
    _family("dot", "torch.dot({a}, {b})", (_of(1), also(_of(1), same_dtype, _vector_of))),
    _family("mm_transposed", "{a} @ {b}.t()", (also(numeric, nonempty, ranked(2)), also(_of(2), same_dtype, _rows_of))),
    _family(
        "linear",
        "torch.nn.functional.linear({a}, {b}, {c})",
        (also(numeric, nonempty, ranked(2)), also(_of(2), same_dtype, _rows_of), also(numeric, _bias_of_rows)),
        _added,
    ),
    _family(
        "addmm",
        "torch.addmm({c}, {a}, {b})",
        (_of(2), also(_of(2), same_dtype, matrix_of), also(numeric, _third_fits)),
        _added,
    ),
    _family(
        "baddbmm",
        "torch.baddbmm({c}, {a}, {b})",
        (_of(3), also(_of(3), same_dtype, _batched), also(numeric, _batched_third)),
        _added,
    ),
    Operator(
        "outer",
        "matmul",
        "torch.outer({a}, {b})",
        (_of(1), also(_of(1), same_dtype)),
        lambda a, b: product(a.value_range, b.value_range),
    ),
    Operator(
        "einsum",
        "matmul",
        'torch.einsum("bij,jk->bki", {a}, {b})',
        (_of(3), also(_of(2), same_dtype, matrix_of)),
        _summed,
    ),
    Operator(
        "tensordot",
        "matmul",
        "torch.tensordot({a}, {b}, 1)",
        (also(numeric, nonempty, ranked(2)), also(_of(2), same_dtype, matrix_of)),
        _summed,
    ),
    Operator(
        "attention",
        "matmul",
        "torch.nn.functional.scaled_dot_product_attention({a}, {b}, {c})",
        (*_ATTENTION, _ATTENTION[1]),
        _attended,
    ),
    Operator(
        "attention_causal",
        "matmul",
        "torch.nn.functional.scaled_dot_product_attention({a}, {b}, {c}, is_causal=True)",
        (*_ATTENTION, _ATTENTION[1]),
        _attended,
    ),
    Operator(
        "kron",
        "matmul",
        "torch.kron({a}, {b})",
        (_of(1), also(_of(1), same_dtype)),
        lambda a, b: product(a.value_range, b.value_range),
    ),
)


def _convolution(name: str, template: str, value_range: Any, *operands: Wanted, choose: Any = None) -> Operator:
    fields = {} if choose is None else {"choose": choose}
    return Operator(name, "convolution", template, operands, value_range, **fields)


def _settings(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"stride": 1 + picks.below(2), "padding": picks.below(2)}


def _weight(value: ProgramValue, a: ProgramValue, *others: ProgramValue) -> bool:
    # Channels agree, and the kernel is no larger than the image.
    return value.rank == a.rank and value.shape[1] == a.shape[1] and _no_larger(value, a)


def _no_larger(value: ProgramValue, a: ProgramValue) -> bool:
    return all(ours <= theirs for ours, theirs in zip(value.shape[2:], a.shape[2:], strict=True))


def _weight_of_one(value: ProgramValue, a: ProgramValue) -> bool:
    return value.rank == a.rank and value.shape[:2] == (a.shape[1], 1) and _no_larger(value, a)


def _transposed_weight(value: ProgramValue, a: ProgramValue) -> bool:
    return value.rank == a.rank and value.shape[0] == a.shape[1]


def _bias(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
    return value.dtype == a.dtype and value.shape == b.shape[:1]


def _summed_of_convolution(a: ProgramValue, b: ProgramValue, **parameters: Any) -> ValueRange:
    return product(a.value_range, b.value_range).summed(math.prod(b.shape) // min(b.shape[0], b.shape[1]))


def _added_of_convolution(a: ProgramValue, b: ProgramValue, c: ProgramValue, **parameters: Any) -> ValueRange:
    return total(_summed_of_convolution(a, b), c.value_range)


def _averaged(a: ProgramValue) -> ValueRange:
    return between(min(a.value_range.low, 0.0), max(a.value_range.high, 0.0), a.value_range)


def _kept(a: ProgramValue) -> ValueRange:
    return a.value_range.repeated()


_LINES = also(numeric, nonempty, ranked(3, 3))
_IMAGES = also(numeric, nonempty, ranked(4, 4))
_LARGE = also(_IMAGES, lambda value, *before: min(value.shape[2:]) >= 2)

_CONVOLUTIONS = (
    _convolution(
        "conv2d",
        "torch.nn.functional.conv2d({a}, {b}, stride={stride}, padding={padding})",
        _summed_of_convolution,
        _IMAGES,
        also(numeric, same_dtype, _weight),
        choose=_settings,
    ),
    _convolution(
        "conv2d_bias",
        "torch.nn.functional.conv2d({a}, {b}, {c}, padding={padding}, stride={stride})",
        _added_of_convolution,
        _IMAGES,
        also(numeric, same_dtype, _weight),
        also(numeric, _bias),
        choose=_settings,
    ),
    _convolution(
        "conv1d",
        "torch.nn.functional.conv1d({a}, {b}, padding=1)",
        _summed_of_convolution,
        _LINES,
        also(numeric, same_dtype, _weight),
    ),
    _convolution(
        "conv_depthwise",
        "torch.nn.functional.conv2d({a}, {b}, groups={b}.shape[0])",
        _summed_of_convolution,
        _IMAGES,
        also(numeric, same_dtype, _weight_of_one),
    ),
    _convolution(
        "conv_transpose2d",
        "torch.nn.functional.conv_transpose2d({a}, {b})",
        _summed_of_convolution,
        _IMAGES,
        also(numeric, same_dtype, _transposed_weight),
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

OPERATORS = (*_PRODUCTS, *_CONVOLUTIONS)
