"""Reductions, running ones too; positions of extremes; sorting; products of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.arguments import ValueRange, between, difference, integers, product, total
from pytest_regional.fuzz.operators.aten.ranges import (
    ROWS,
    Ranges,
    always,
    any_number,
    averaged,
    chosen_values,
    extreme,
    finite_or_truth,
    float_dtypes,
    multiplied_up,
    normed,
    places,
    sorted_values,
    spread,
    summed,
    truth,
    variance,
)
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    ProgramValue,
    Wanted,
    agreed,
    also,
    anything,
    at_least,
    bits,
    distinct,
    each_in_its_place,
    exact,
    floating,
    integer,
    matrix_of,
    nonempty,
    numeric,
    ranked,
    real,
    same_dtype,
    same_shape,
    unkinked,
    without_gradient,
)
from pytest_regional.fuzz.operators.schemas import derived


def reductions() -> Iterator[tuple[Operator, ...]]:
    """Yield reductions over dimensions, and running ones."""
    rows = {"self": also(finite_or_truth, ROWS)}
    everything = {"self": also(finite_or_truth, nonempty)}
    yield derived("sum.dim_IntList", "reduction", rows, summed)
    yield derived("sum", "reduction", everything, summed)
    floats = {"self": also(numeric, ROWS)}
    yield derived("mean.dim", "reduction", floats, averaged, given={"dtype": float_dtypes})
    yield derived("mean", "reduction", {"self": also(numeric, nonempty)}, averaged, given={"dtype": float_dtypes})
    yield derived("nansum", "reduction", {"self": also(real, agreed, ROWS)}, summed, given={"dtype": float_dtypes})
    yield derived("nanmean", "reduction", floats, averaged, given={"dtype": float_dtypes})
    factors = also(
        finite_or_truth,
        ROWS,
        lambda v, *b: max(v.shape) <= 5,
        lambda v, *b: v.value_range.low >= 0.1 or not v.requires_grad,
    )
    yield derived("prod.dim_int", "reduction", {"self": factors}, multiplied_up)
    for name in ("amax", "amin"):
        yield derived(name, "reduction", {"self": also(any_number, ROWS, unkinked)}, extreme)
    yield derived(
        "aminmax",
        "reduction",
        {"self": also(any_number, ROWS, unkinked)},
        lambda a, **p: (extreme(a), extreme(a)),
        given={"dim": _dims_of_value},
    )
    several = {"self": also(numeric, ROWS, _several_rows)}
    yield derived("var.correction", "reduction", several, variance)
    yield derived("std.correction", "reduction", {"self": also(several["self"], without_gradient, _varied)}, spread)
    yield derived("var_mean.correction", "reduction", several, lambda a, **p: (variance(a), averaged(a, p["dim"])))
    yield derived(
        "std_mean.correction",
        "reduction",
        {"self": also(several["self"], without_gradient, _varied)},
        lambda a, **p: (spread(a), averaged(a, p["dim"])),
    )
    away = also(floating, ROWS, at_least(0.1))
    yield derived(
        "linalg_vector_norm",
        "reduction",
        {"self": away},
        normed,
        given={"dtype": float_dtypes, "ord": always(2, 1, 3, 0.5)},
    )
    yield derived("norm.ScalarOpt_dim", "reduction", {"self": away}, normed, given={"p": always(2, 1, 3)})
    yield derived("norm.Scalar", "reduction", {"self": away}, normed, given={"p": always(2, 1, 3)})
    yield derived(
        "renorm",
        "reduction",
        {"self": also(away, ranked(2))},
        lambda a, **p: between(0, a.value_range.high, a.value_range),
        given={"maxnorm": always(1.0, 0.5), "p": always(2.0, 1.0)},
    )
    for name in ("any", "all"):
        yield derived(name, "reduction", {"self": also(anything, exact)}, truth)
        yield derived(f"{name}.dim", "reduction", {"self": also(anything, exact, ROWS)}, truth)
        yield derived(f"{name}.dims", "reduction", {"self": also(anything, exact, ROWS)}, truth)
    yield derived(
        "count_nonzero.dim_IntList",
        "reduction",
        {"self": also(anything, exact, ROWS)},
        lambda a, **p: integers(0, a.count),
        given={"dim": _dim_tuples},
    )
    yield derived("cumsum", "reduction", {"self": also(finite_or_truth, ROWS)}, summed, in_place=True)
    yield derived("cumprod", "reduction", {"self": factors}, multiplied_up)
    yield derived(
        "logcumsumexp",
        "reduction",
        {"self": also(floating, ROWS)},
        lambda a, dim: between(a.value_range.low, a.value_range.high + math.log(a.shape[dim]), a.value_range),
    )
    yield derived(
        "logsumexp",
        "reduction",
        {"self": also(floating, ROWS)},
        lambda a, **p: between(a.value_range.low, a.value_range.high + math.log(a.count), a.value_range),
    )
    for name in ("cummax", "cummin"):
        yield derived(name, "reduction", {"self": also(any_number, ROWS, exact)}, lambda a, **p: extreme(a), first=True)
    yield derived(
        "trace",
        "reduction",
        {"self": also(any_number, ranked(2, 2), nonempty)},
        lambda a: a.value_range.summed(min(a.shape)),
    )
    yield derived(
        "histc",
        "reduction",
        {"self": also(numeric, exact, nonempty, without_gradient)},
        lambda a, **p: integers(0, a.count),
        given={"bins": always(4, 8), "min": always(-2), "max": always(2, 6)},
    )
    yield derived(
        "diff",
        "reduction",
        {"self": also(any_number, ROWS)},
        lambda a, **p: difference(a.value_range, a.value_range),
        given={"n": always(1)},
    )
    yield derived(
        "trapezoid.dx",
        "reduction",
        {"y": also(numeric, ROWS)},
        lambda a, **p: replace(a.value_range.summed(a.count), unit=None),
        given={"dx": always(1, 2)},
    )


def _dims_of_value(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    return (*range(values[0].rank), -1)


def _dim_tuples(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[tuple[int, ...]]:
    return [(dim,) for dim in range(values[0].rank)]


def _several_rows(value: ProgramValue, *before: ProgramValue) -> bool:
    # Of one element, and of two with a correction of 2, the variance is none.
    return min(value.shape) >= 3


def _varied(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want elements that differ along each dimension, so that no square root is taken of a rounding error."""
    sample = value.tensor.detach().double()
    return all(bool((sample.std(dim) > 1e-3 * sample.abs().amax(dim)).all()) for dim in range(value.rank))


def at_extreme() -> Iterator[Operator]:
    """Yield choices by position: what stands there is judged, not which of several equal positions it is."""
    for name, keyword in (("argmax", ""), ("argmin", "")):
        yield Operator(
            f"at_{name}",
            "sort",
            f"torch.take_along_dim({{a}}, torch.{name}({{a}}, {{dim}}, keepdim=True), {{dim}}){keyword}",
            (also(any_number, exact, ROWS, without_gradient),),
            extreme,
            lambda values, picks: {"dim": picks.below(values[0].rank)},
        )
    yield Operator(
        "values_sorted",
        "sort",
        "torch.sort({a}, {dim}, descending={descending})[0]",
        (also(anything, exact, ROWS, without_gradient),),
        lambda a, **p: replace(a.value_range, zeros=False),
        lambda values, picks: {"dim": picks.below(values[0].rank), "descending": picks.flag()},
    )
    yield Operator(
        "values_topk",
        "sort",
        "torch.topk({a}, {k}, {dim}, largest={largest})[0]",
        (also(any_number, exact, ROWS, without_gradient),),
        lambda a, **p: replace(a.value_range.repeated(), zeros=False),
        lambda values, picks: _topk(values, picks),
    )
    yield Operator(
        "values_max",
        "sort",
        "torch.max({a}, {dim})[0]",
        (also(anything, exact, ROWS, without_gradient),),
        extreme,
        lambda values, picks: {"dim": picks.below(values[0].rank)},
    )
    yield Operator(
        "values_median",
        "sort",
        "torch.median({a}, {dim})[0]",
        (also(any_number, exact, ROWS, without_gradient, each_in_its_place),),
        extreme,
        lambda values, picks: {"dim": picks.below(values[0].rank)},
    )
    yield Operator(
        "values_kth",
        "sort",
        "torch.kthvalue({a}, {k}, {dim})[0]",
        (also(any_number, exact, ROWS, without_gradient),),
        extreme,
        lambda values, picks: {"dim": (dim := picks.below(values[0].rank)), "k": 1 + picks.below(values[0].shape[dim])},
    )
    for dims, size in ((2, "2"), (3, "3")):
        samples = f"torch.full((*{{a}}.shape[:2], {size}), 0.3, dtype={{a}}.dtype, device={{a}}.device)"
        yield Operator(
            f"fractional_max_pool{dims}d",
            "convolution",
            f"torch.ops.aten.fractional_max_pool{dims}d.default({{a}}, {(2,) * dims}, {(1,) * dims}, {samples})",
            (also(numeric, distinct, nonempty, ranked(dims + 2, dims + 2), _wide),),
            lambda a: (a.value_range.repeated(), integers(0, a.count)),
            results=2,
        )
    yield Operator(
        "searchsorted",
        "sort",
        "torch.searchsorted(torch.sort({a})[0], {b}, right={right}, out_int32={out_int32})",
        (also(any_number, exact, ranked(1, 1), nonempty), also(any_number, exact, same_dtype, ranked(1))),
        lambda a, b, **p: integers(0, a.count),
        lambda values, picks: {"right": picks.flag(), "out_int32": picks.flag()},
    )
    yield Operator(
        "bucketize_sorted",
        "sort",
        "torch.bucketize({b}, torch.sort({a})[0], right={right}, out_int32={out_int32})",
        (also(any_number, exact, ranked(1, 1), nonempty), also(any_number, exact, same_dtype, ranked(1))),
        lambda a, b, **p: integers(0, a.count),
        lambda values, picks: {"right": picks.flag(), "out_int32": picks.flag()},
    )


def _wide(value: ProgramValue, *before: ProgramValue) -> bool:
    return min(value.shape[2:]) >= 3


def _topk(values: Sequence[ProgramValue], picks: Any) -> dict[str, Any]:
    dim = picks.below(values[0].rank)
    return {"dim": dim, "k": 1 + picks.below(values[0].shape[dim]), "largest": not picks.flag()}


def sorting() -> Iterator[tuple[Operator, ...]]:
    """Yield what sorts and chooses, where positions are defined."""
    ordered = {"self": also(anything, exact, ROWS, bits)}
    single = {"self": also(anything, distinct, ROWS)}
    only = {"stable": always(True)}
    yield derived("sort.stable", "sort", ordered, sorted_values, given=only)
    yield derived("argsort.stable", "sort", ordered, places, given=only)
    yield derived("sort", "sort", single, sorted_values)
    yield derived("topk", "sort", single, sorted_values, given={"k": _topk_counts, "dim": _dims_last_first})
    equal = {"self": also(any_number, exact, ROWS, _no_gradient_of_ties)}
    yield derived("msort", "sort", equal, lambda a: replace(a.value_range, zeros=False))
    for name in ("argmax", "argmin"):
        yield derived(
            name, "sort", single, places, given={"dim": lambda values, chosen: (None, *range(values[0].rank))}
        )
    # Eager's median of a tensor with a stride of 0 is none of its elements (docs/findings/median_of_expanded.py).
    numbers = {"self": also(single["self"], any_number, each_in_its_place)}
    for name in ("max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode"):
        yield derived(name, "sort", numbers, chosen_values)
    yield derived("kthvalue", "sort", numbers, chosen_values, given={"dim": _dims_last_first, "k": _smallest_counts})


def _no_gradient_of_ties(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor whose equal elements nothing tells apart: which one an unstable sort puts first is not promised."""
    return distinct(value) or without_gradient(value)


def _topk_counts(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    return tuple(range(1, 1 + min(min(values[0].shape), 4)))


_smallest_counts = _topk_counts


def _dims_last_first(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    return (-1, *range(values[0].rank))


def products() -> Iterator[tuple[Operator, ...]]:
    """Yield products of matrices with a scaled summand, of integers, and in place."""
    matrix = also(numeric, nonempty, ranked(2, 2))
    vector = also(numeric, nonempty, ranked(1, 1))
    batch = also(numeric, nonempty, ranked(3, 3))

    def added(count: Callable[..., int]) -> Ranges:
        def value_range(
            a: ProgramValue, b: ProgramValue, c: ProgramValue, alpha: float = 1, beta: float = 1
        ) -> ValueRange:
            summed = product(a.value_range, b.value_range).summed(count(a, b)).scaled(alpha)
            # Of what is scaled by zero nothing comes through, not even NaN.
            return replace(summed, zeros=False) if beta == 0 else total(summed, c.value_range.scaled(beta))

        return value_range

    def third(shape: Callable[..., tuple[int, ...]]) -> Wanted:
        def fits(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
            wanted = shape(a, b)
            pairs = zip(reversed(value.shape), reversed(wanted), strict=False)
            return (
                real(value)
                and value.dtype == a.dtype
                and value.rank <= len(wanted)
                and all(x in (y, 1) for x, y in pairs)
            )

        return fits

    inner = lambda a, b: a.shape[-1]  # noqa: E731
    whole = {rank: also(integer, nonempty, ranked(rank, rank)) for rank in (1, 2, 3)}

    def multiplied(a: ProgramValue, b: ProgramValue) -> ValueRange:
        return product(a.value_range, b.value_range).summed(a.shape[-1])

    # Of integers; those of floats stand where a user would write them.
    yield derived("mm", "matmul", {"self": whole[2], "mat2": also(whole[2], same_dtype, matrix_of)}, multiplied)
    yield derived(
        "bmm",
        "matmul",
        {
            "self": whole[3],
            "mat2": also(whole[3], same_dtype, lambda v, a: v.shape[0] == a.shape[0] and v.shape[1] == a.shape[2]),
        },
        multiplied,
    )
    yield derived(
        "mv",
        "matmul",
        {"self": whole[2], "vec": also(whole[1], same_dtype, lambda v, a: v.shape == a.shape[1:])},
        multiplied,
    )
    yield derived("dot", "matmul", {"self": whole[1], "tensor": also(whole[1], same_dtype, same_shape)}, multiplied)
    of_rows = also(matrix, same_dtype, matrix_of)
    yield derived(
        "addmm",
        "matmul",
        {"mat1": matrix, "mat2": of_rows, "self": third(lambda a, b: (a.shape[0], b.shape[1]))},
        added(inner),
        in_place=True,
    )
    yield derived(
        "addmv",
        "matmul",
        {
            "mat": matrix,
            "vec": also(vector, same_dtype, lambda v, a: v.shape == a.shape[1:]),
            "self": third(lambda a, b: (a.shape[0],)),
        },
        added(inner),
        in_place=True,
    )
    batched = also(batch, same_dtype, lambda v, a: v.shape[0] == a.shape[0] and v.shape[1] == a.shape[2])
    yield derived(
        "baddbmm",
        "matmul",
        {"batch1": batch, "batch2": batched, "self": third(lambda a, b: (*a.shape[:2], b.shape[2]))},
        added(inner),
        in_place=True,
    )
    yield derived(
        "addbmm",
        "matmul",
        {"batch1": batch, "batch2": batched, "self": third(lambda a, b: (a.shape[1], b.shape[2]))},
        added(lambda a, b: a.shape[0] * a.shape[2]),
        in_place=True,
    )
    yield derived(
        "addr",
        "matmul",
        {"vec1": vector, "vec2": also(vector, same_dtype), "self": third(lambda a, b: (a.count, b.count))},
        added(lambda a, b: 1),
        in_place=True,
    )
    three = also(numeric, lambda v, *b: 3 in v.shape)

    def dims_of_three(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
        return [dim for dim, size in enumerate(values[0].shape) if size == 3]

    yield derived(
        "linalg_cross",
        "matmul",
        {"self": three, "other": also(numeric, same_dtype, same_shape)},
        lambda a, b, **p: replace(
            product(a.value_range, b.value_range).summed(2),
            low=-2 * a.value_range.size * b.value_range.size,
            high=2 * a.value_range.size * b.value_range.size,
        ),
        given={"dim": dims_of_three},
    )
    yield derived(
        "vdot",
        "matmul",
        {"self": vector, "other": also(vector, same_dtype, same_shape)},
        lambda a, b: product(a.value_range, b.value_range).summed(a.count),
    )
    yield derived(
        "inner",
        "matmul",
        {
            "self": also(numeric, nonempty, ranked(1)),
            "other": also(numeric, nonempty, ranked(1), same_dtype, lambda v, a: v.shape[-1] == a.shape[-1]),
        },
        lambda a, b: product(a.value_range, b.value_range).summed(a.shape[-1]),
    )
    yield derived(
        "cdist",
        "matmul",
        {
            "x1": also(floating, nonempty, ranked(2, 2), without_gradient),
            "x2": also(
                floating, nonempty, ranked(2, 2), same_dtype, without_gradient, lambda v, a: v.shape[1] == a.shape[1]
            ),
        },
        lambda a, b, **p: between(0, 4 * (a.value_range.size + b.value_range.size) * a.shape[1], a.value_range),
        given={"p": always(1.0, 3.0)},
    )
    yield derived(
        "_int_mm",
        "matmul",
        {
            "self": also(integer, ranked(2, 2), lambda v, *b: v.dtype == "int8" and v.shape[0] > 16),
            "mat2": also(integer, same_dtype, matrix_of),
        },
        lambda a, b: integers(-(2**14) * a.shape[1], 2**14 * a.shape[1]),
    )
