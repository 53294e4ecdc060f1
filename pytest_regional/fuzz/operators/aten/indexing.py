"""Reading and writing by index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.value_range import ValueRange, between, constant, total
from pytest_regional.fuzz.operators.aten.ranges import ROWS, always, any_number, finite_or_truth, repeated, valid_index
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    ProgramValue,
    Wanted,
    also,
    boolean,
    distinct,
    nonempty,
    ranked,
    same_dtype,
    same_shape,
    without_gradient,
)
from pytest_regional.fuzz.operators.schemas import derived


def _dims_for(values: Sequence[ProgramValue]) -> list[int]:
    """Return the dimensions along which the index, the second operand, can stand for elements of the first."""
    a, index = values[0], values[1]
    return [dim for dim in range(a.rank) if index.value_range.high < a.shape[dim]]


def _elements(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    a, index = values[0], values[1]
    return [
        dim
        for dim in _dims_for(values)
        if all(index.shape[other] <= a.shape[other] for other in range(a.rank) if other != dim)
    ]


def _rows(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    a, index, *others = values
    found = _dims_for(values)
    if others:
        source = others[0].shape
        found = [dim for dim in found if source == (*a.shape[:dim], *index.shape, *a.shape[dim + 1 :])]
    return found


def _index_of_elements(value: ProgramValue, a: ProgramValue, *others: ProgramValue) -> bool:
    return valid_index(value) and value.rank == a.rank >= 1 and bool(_elements([a, value], {}))


def _index_of_rows(value: ProgramValue, a: ProgramValue, *others: ProgramValue) -> bool:
    return valid_index(value) and value.rank == 1 and bool(_dims_for([a, value]))


def _one_each(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
    return value.dtype == a.dtype and value.shape == b.shape and any_number(value)


def _row_each(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
    return value.dtype == a.dtype and any_number(value) and bool(_rows([a, b, value], {}))


def _gathered(a: ProgramValue, b: ProgramValue, c: ProgramValue, alpha: float = 1, **parameters: Any) -> ValueRange:
    return total(a.value_range, c.value_range.scaled(alpha).summed(max(b.count, 1)))


def _reduced(a: ProgramValue, b: ProgramValue, c: ProgramValue, reduce: str, **parameters: Any) -> ValueRange:
    """Return the range of what a scatter with a reduction leaves."""
    held = a.value_range.join(c.value_range)
    if reduce in ("amax", "amin"):
        return replace(held, zeros=False)
    if reduce in ("sum", "add"):
        return total(a.value_range, c.value_range.summed(b.count)).join(c.value_range.summed(b.count))
    if reduce == "mean":
        # A quotient of integers is cut or floored, and of floats rounded.
        return replace(held, unit=None, exact=not a.is_float, low=min(held.low, 0), high=max(held.high, 0))
    size = max(held.size, 1.0) ** (b.count + 1)
    unit = None if held.unit is None else min(held.unit, 1.0) ** (b.count + 1)
    return replace(between(-size, size, held), unit=unit, zeros=False)


def scattering() -> Iterator[tuple[Operator, ...]]:
    """Yield reads and writes by index."""
    table = also(finite_or_truth, ROWS)
    numbers = also(any_number, ROWS)
    element = {"self": table, "index": _index_of_elements}
    along = {"dim": _elements}
    yield derived("gather", "index", element, repeated, given={**along, "sparse_grad": always(False)})
    yield derived("index_select", "index", {"self": table, "index": _index_of_rows}, repeated, given={"dim": _rows})
    yield derived(
        "take",
        "index",
        {
            "self": also(finite_or_truth, nonempty),
            "index": lambda v, a: valid_index(v) and v.rank >= 1 and v.value_range.high < a.count,
        },
        repeated,
    )
    single = also(_index_of_elements, distinct)
    yield derived(
        "scatter.src",
        "scatter",
        {"self": numbers, "index": single, "src": _one_each},
        lambda a, b, c, **p: a.value_range.join(c.value_range),
        given=along,
        in_place=True,
    )
    yield derived(
        "scatter.value",
        "scatter",
        {"self": numbers, "index": _index_of_elements},
        lambda a, b, value, **p: a.value_range.join(constant(value)),
        given=along,
        in_place=True,
    )
    scatter: dict[str, Wanted] = {"self": numbers, "index": _index_of_elements, "src": _one_each}
    plain = {
        "self": also(numbers, without_gradient),
        "index": _index_of_elements,
        "src": also(_one_each, without_gradient),
    }
    yield derived(
        "scatter.reduce",
        "scatter",
        plain,
        lambda a, b, c, reduce, **p: _reduced(a, b, c, {"multiply": "prod"}.get(reduce, reduce)),
        given={**along, "reduce": always("add", "multiply")},
        in_place=True,
    )
    yield derived(
        "scatter.value_reduce",
        "scatter",
        {"self": also(numbers, without_gradient), "index": _index_of_elements},
        _reduced_by_value,
        given={**along, "reduce": always("add", "multiply"), "value": always(2, -1, 1)},
        in_place=True,
    )
    yield derived("scatter_add", "scatter", scatter, _gathered, given=along, in_place=True)
    yield derived("scatter_reduce.two", "scatter", plain, _reduced, given=along, in_place=True)
    rows: dict[str, Wanted] = {"self": numbers, "index": _index_of_rows, "source": _row_each}
    yield derived("index_add", "scatter", rows, _gathered, given={"dim": _rows}, in_place=True)
    yield derived(
        "index_copy",
        "scatter",
        {**rows, "index": also(_index_of_rows, distinct)},
        lambda a, b, c, **p: a.value_range.join(c.value_range),
        given={"dim": _rows},
        in_place=True,
    )
    yield derived(
        "index_fill.int_Scalar",
        "scatter",
        {"self": numbers, "index": _index_of_rows},
        lambda a, b, value, **p: a.value_range.join(constant(value)),
        given={"dim": _rows},
        in_place=True,
    )
    yield derived(
        "index_reduce",
        "scatter",
        {"self": also(numbers, without_gradient), "index": _index_of_rows, "source": also(_row_each, without_gradient)},
        _reduced,
        given={"dim": _rows, "reduce": always("prod", "mean", "amax", "amin")},
        in_place=True,
    )
    yield derived(
        "put",
        "scatter",
        {
            "self": also(any_number, nonempty),
            "index": also(lambda v, a, *o: valid_index(v) and v.rank >= 1 and v.value_range.high < a.count, distinct),
            "source": _one_each,
        },
        lambda a, b, c, **p: a.value_range.join(total(a.value_range, c.value_range)).join(c.value_range),
        in_place=True,
    )
    yield derived(
        "masked_scatter",
        "scatter",
        {"self": numbers, "mask": also(boolean, same_shape), "source": also(any_number, same_dtype, same_shape)},
        lambda a, b, c: a.value_range.join(c.value_range),
        in_place=True,
    )
    yield from _slices_scattered()


def _reduced_by_value(a: ProgramValue, b: ProgramValue, value: float, reduce: str, **parameters: Any) -> ValueRange:
    if reduce == "add":
        return total(a.value_range, constant(value).summed(b.count))
    reach = a.value_range.size * max(abs(value), 1) ** b.count
    return replace(between(-reach, reach, a.value_range), unit=a.value_range.unit, zeros=a.value_range.zeros)


def _slices_scattered() -> Iterator[tuple[Operator, ...]]:
    table = also(finite_or_truth, ROWS)

    def join(a: ProgramValue, b: ProgramValue, **parameters: Any) -> ValueRange:
        return a.value_range.join(b.value_range)

    def dims_without(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
        a, source = values
        return [dim for dim in range(a.rank) if source.shape == (*a.shape[:dim], *a.shape[dim + 1 :])]

    def dims_shorter(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
        a, source = values
        return [
            dim
            for dim in range(a.rank)
            if source.rank == a.rank
            and 0 < source.shape[dim] <= a.shape[dim]
            and all(source.shape[other] == a.shape[other] for other in range(a.rank) if other != dim)
        ]

    def starts(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int | None]:
        a, source = values
        room = a.shape[chosen["dim"]] - source.shape[chosen["dim"]]
        return (None, room, -source.shape[chosen["dim"]]) if room else (None, 0)

    def ends(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int | None]:
        source, start = values[1], chosen["start"] or 0
        end = start + source.shape[chosen["dim"]]
        return (end if end else None,)

    yield derived(
        "select_scatter",
        "scatter",
        {"self": table, "src": also(finite_or_truth, same_dtype, lambda v, a: bool(dims_without([a, v], {})))},
        join,
        given={"dim": dims_without},
    )
    yield derived(
        "slice_scatter",
        "scatter",
        {"self": table, "src": also(finite_or_truth, same_dtype, lambda v, a: bool(dims_shorter([a, v], {})))},
        join,
        given={"dim": dims_shorter, "start": starts, "end": ends, "step": always(1)},
    )
    yield derived(
        "diagonal_scatter",
        "scatter",
        {"self": also(finite_or_truth, ranked(2, 2), nonempty), "src": also(finite_or_truth, same_dtype, ranked(1, 1))},
        join,
        given={"dim1": always(0), "dim2": always(1)},
    )
    yield derived(
        "as_strided_scatter",
        "scatter",
        {
            "self": also(finite_or_truth, nonempty, lambda v, *b: v.tensor.is_contiguous()),
            "src": also(finite_or_truth, same_dtype, ranked(1, 1), nonempty, lambda v, a: v.count <= a.count),
        },
        join,
        given={
            "size": lambda values, chosen: (values[1].shape,),
            "stride": always((1,)),
            "storage_offset": lambda values, chosen: (0, values[0].count - values[1].count),
        },
    )
