"""Reading and writing by index; functions of one number or two; complex numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.arguments import ValueRange, between, constant, integers, total
from pytest_regional.fuzz.operators.aten.ranges import (
    ROWS,
    Ranges,
    always,
    any_number,
    bounded,
    clamped,
    finite_or_truth,
    floats_like,
    monotone,
    repeated,
    valid_index,
)
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    ProgramValue,
    Wanted,
    also,
    at_least,
    boolean,
    broadcasts,
    distinct,
    exact,
    floating,
    integer,
    no_larger_than,
    nonempty,
    numeric,
    ranked,
    same_dtype,
    same_shape,
    signed,
    unkinked_at,
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


def smooth() -> Iterator[tuple[Operator, ...]]:
    """Yield functions of one number, and of two."""

    def unary(name: str, value_range: Ranges, *conditions: Wanted, **fields: Any) -> tuple[Operator, ...]:
        return derived(name, "pointwise", {"self": also(floating, *conditions)}, value_range, **fields)

    inside = no_larger_than(0.9)
    yield unary("acos", bounded(0, 3.2), inside)
    yield unary("acosh", bounded(0, 8), at_least(1.2))
    yield unary("log10", monotone(math.log10), at_least(0.1))
    yield unary("erfc", bounded(0, 2))
    yield unary("erfinv", bounded(-2, 2), inside)
    yield unary("digamma", bounded(-12, 8), at_least(0.2))
    yield unary("lgamma", bounded(-1, 210), at_least(0.2), no_larger_than(64))
    yield unary("sinc", bounded(-1, 1), no_larger_than(16))
    yield unary("i0", bounded(0, 60), no_larger_than(4))
    yield unary("special_i0e", bounded(0, 1), no_larger_than(4))
    yield unary("special_i1", bounded(-12, 12), no_larger_than(4))
    yield unary("special_i1e", bounded(-1, 1), no_larger_than(4))
    yield unary("special_ndtr", bounded(0, 1), no_larger_than(4))
    yield unary("special_ndtri", bounded(-2, 2), at_least(0.1), inside)
    yield unary("special_log_ndtr", bounded(-16, 0), no_larger_than(4))
    yield unary("special_entr", bounded(-16, 0.4), at_least(0.1), no_larger_than(4))
    yield unary("special_erfcx", bounded(0, 8), at_least(-1), no_larger_than(4))
    yield unary("special_bessel_j0", bounded(-1, 1), no_larger_than(8))
    yield unary("special_bessel_j1", bounded(-1, 1), no_larger_than(8))
    yield unary("polygamma", bounded(-60, 60), at_least(0.5), given={"n": always(1, 0, 2)})
    yield unary("deg2rad", bounded(-16, 16))
    yield unary("rad2deg", bounded(-460, 460), no_larger_than(8))
    yield unary("logit", bounded(-3, 3), at_least(0.1), inside, given={"eps": always(None, 0.05)})
    yield unary("gelu", lambda a, **p: between(-0.2, max(a.value_range.high, 0.0), a.value_range), in_place=True)
    yield unary(
        "softplus",
        lambda a, **p: between(0, max(a.value_range.high, 0.0) + 1, a.value_range),
        no_larger_than(8),
        given={"beta": always(1, 2), "threshold": always(20)},
    )
    yield unary(
        "elu",
        lambda a, **p: between(-2.0, 2 * max(a.value_range.high, 0.0), a.value_range),
        unkinked_at(0.0),
        given={"alpha": always(1, 0.5, 2), "scale": always(1, 2), "input_scale": always(1, 0.5)},
        in_place=True,
    )
    yield unary(
        "celu",
        lambda a, **p: between(-2.0, max(a.value_range.high, 0.0), a.value_range),
        unkinked_at(0.0),
        given={"alpha": always(1.0, 0.5, 2.0)},
    )
    yield unary("selu", lambda a, **p: between(-2.0, 2 * max(a.value_range.high, 0.0), a.value_range), unkinked_at(0.0))
    yield unary("hardshrink", lambda a, **p: replace(a.value_range.join(constant(0)), zeros=False), exact)
    yield unary(
        "softshrink",
        lambda a, **p: between(min(a.value_range.low, 0), max(a.value_range.high, 0), a.value_range),
        unkinked_at(-0.5, -0.25, 0.25, 0.5),
    )
    yield unary(
        "leaky_relu",
        lambda a, **p: between(min(a.value_range.low, 0.0), max(a.value_range.high, 0.0), a.value_range),
        unkinked_at(0.0),
        in_place=True,
    )
    yield unary(
        "hardtanh", lambda a, min_val, max_val: clamped(a, min_val, max_val), unkinked_at(-1, 0, 1, 2), in_place=True
    )
    yield unary(
        "hardswish",
        lambda a: between(-0.4, max(a.value_range.high, 0.0), a.value_range),
        unkinked_at(-3, 3),
        in_place=True,
    )
    yield unary("hardsigmoid", lambda a: between(0, 1, a.value_range), unkinked_at(-3, 3), in_place=True)
    yield unary(
        "glu",
        lambda a, dim: between(-a.value_range.size, a.value_range.size, a.value_range),
        ranked(1),
        lambda v, *b: v.shape[-1] % 2 == 0,
        nonempty,
        given={"dim": always(-1)},
    )
    yield unary("sigmoid", bounded(0, 1), in_place=True)
    yield unary("tanh", monotone(math.tanh), in_place=True)
    yield unary("exp", monotone(math.exp), no_larger_than(4), in_place=True)
    yield unary("sqrt", monotone(math.sqrt), at_least(0.1), in_place=True)
    yield unary("reciprocal", monotone(lambda x: 1 / x), at_least(0.1), in_place=True)
    exactly = also(numeric, exact)
    whole = {"self": exactly}
    yield derived("round.decimals", "pointwise", {"self": also(numeric, exact, _has_unit)}, _rounded_decimals)
    yield derived(
        "frexp.Tensor",
        "pointwise",
        whole,
        lambda a: (ValueRange(-1, 1, exact=True, zeros=a.value_range.zeros), integers(-1100, 1100)),
    )
    yield derived(
        "trunc",
        "pointwise",
        whole,
        lambda a: replace(integers(math.floor(a.value_range.low), math.ceil(a.value_range.high)), zeros=False),
        in_place=True,
    )
    yield derived(
        "ldexp.Tensor",
        "pointwise",
        {"self": numeric, "other": also(integer, broadcasts, no_larger_than(6))},
        lambda a, b: replace(a.value_range.scaled(64).join(a.value_range.scaled(1 / 64)), exact=False, zeros=False),
    )
    yield derived(
        "nextafter",
        "pointwise",
        {"self": also(numeric, signed), "other": also(numeric, signed, same_dtype, broadcasts)},
        lambda a, b: replace(a.value_range.join(b.value_range), unit=None),
    )
    yield derived(
        "copysign.Tensor",
        "pointwise",
        {"self": exactly, "other": also(any_number, signed, broadcasts)},
        lambda a, b: replace(a.value_range.kept(-a.value_range.size, a.value_range.size), zeros=True),
    )
    yield derived(
        "copysign.Scalar",
        "pointwise",
        whole,
        lambda a, number: replace(a.value_range.kept(-a.value_range.size, a.value_range.size), zeros=True),
        given={"other": always(1, -1, -0.0)},
    )
    yield derived(
        "heaviside",
        "pointwise",
        {"self": exactly, "values": also(numeric, same_dtype, broadcasts)},
        lambda a, b: integers(0, 1).join(b.value_range),
    )
    yield derived(
        "hypot",
        "pointwise",
        {"self": floating, "other": floats_like(at_least(0.1))},
        lambda a, b: between(0, a.value_range.size + b.value_range.size, a.value_range, b.value_range),
        in_place=True,
    )
    yield derived(
        "logaddexp2",
        "pointwise",
        {"self": floating, "other": floats_like()},
        lambda a, b: between(
            max(a.value_range.low, b.value_range.low),
            max(a.value_range.high, b.value_range.high) + 1,
            a.value_range,
            b.value_range,
        ),
    )
    for name in ("xlogy.Tensor", "special_xlog1py"):
        yield derived(
            name,
            "pointwise",
            {"self": floating, "other": floats_like(at_least(0.1), no_larger_than(16))},
            lambda a, b: between(-3 * a.value_range.size, 3 * a.value_range.size, a.value_range, b.value_range),
        )
    yield derived(
        "special_zeta",
        "pointwise",
        {
            "self": also(floating, at_least(1.5), no_larger_than(8)),
            "other": floats_like(at_least(0.5), no_larger_than(8)),
        },
        bounded(0, 300),
    )
    yield derived(
        "prelu",
        "pointwise",
        {
            "self": also(floating, unkinked_at(0.0), ranked(2), nonempty),
            "weight": lambda v, a: floating(v) and v.dtype == a.dtype and v.shape == a.shape[1:2],
        },
        lambda a, b: between(
            -max(1, b.value_range.size) * a.value_range.size,
            max(1, b.value_range.size) * a.value_range.size,
            a.value_range,
        ),
    )


def _has_unit(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.value_range.unit is not None and value.value_range.unit >= 1 and value.value_range.ordinary


def _rounded_decimals(a: ProgramValue, decimals: int) -> ValueRange:
    # Tens are represented exactly, tenths only where they are whole.
    return replace(integers(a.value_range.low - 5, a.value_range.high + 5), zeros=False)


def complex_numbers() -> Iterator[Operator]:
    """Yield functions of complex numbers, made of real ones and taken apart again."""
    operands = (floating, also(floating, _complex_part))
    number = "torch.complex({a}, {b})"
    nonzero = also(floating, at_least(0.1))

    def complex_operator(name: str, template: str, value_range: Ranges, first: Wanted = floating) -> Operator:
        return Operator(f"complex_{name}", "pointwise", template, (first, operands[1]), value_range)

    def both(a: ProgramValue, b: ProgramValue) -> ValueRange:
        return a.value_range.join(b.value_range)

    def squared(a: ProgramValue, b: ProgramValue) -> ValueRange:
        reach = 2 * max(a.value_range.size, b.value_range.size) ** 2
        return between(-reach, reach, a.value_range, b.value_range)

    def quotient(a: ProgramValue, b: ProgramValue) -> ValueRange:
        reach = (a.value_range.size + b.value_range.size) / a.value_range.low
        return between(-reach, reach, a.value_range, b.value_range)

    yield complex_operator(
        "abs",
        f"torch.abs({number})",
        lambda a, b: between(0, a.value_range.size + b.value_range.size, a.value_range),
        nonzero,
    )
    yield complex_operator("angle", f"torch.angle({number})", bounded(-3.2, 3.2), nonzero)
    yield complex_operator("parts", f"torch.view_as_real({number})", both)
    yield complex_operator(
        "conjugate",
        f"torch.view_as_real(torch.conj({number}).resolve_conj())",
        lambda a, b: a.value_range.join(replace(b.value_range, low=-b.value_range.high, high=-b.value_range.low)),
    )
    yield complex_operator("product", f"({number} * torch.complex({{b}}, {{a}})).imag", squared)
    yield complex_operator(
        "real_of_conjugate", f"torch.conj({number}).real.clone()", lambda a, b: a.value_range.repeated()
    )
    yield complex_operator("quotient", f"torch.view_as_real({number} / torch.complex({{a}}, {{a}}))", quotient, nonzero)
    yield complex_operator(
        "polar",
        "torch.polar({a}, {b}).real.clone()",
        lambda a, b: between(-a.value_range.size, a.value_range.size, a.value_range),
        also(floating, no_larger_than(32)),
    )
    yield complex_operator("sum", f"torch.sum({number}).real.clone()", lambda a, b: a.value_range.summed(a.count))
    yield complex_operator("scaled", f"(2.0 * {number} + {{a}}).imag.clone()", lambda a, b: b.value_range.scaled(2.0))
    edges = also(numeric, signed, without_gradient)
    yield Operator(
        "complex_angle_of_edges",
        "pointwise",
        f"torch.angle({number})",
        (edges, also(edges, _complex_part)),
        bounded(-3.2, 3.2),
    )
    # On the edge of the plane's cut signs of zeros decide: 0.0 and -0.0 are drawn by "edges".
    yield Operator(
        "complex_angle_of_real",
        "pointwise",
        "torch.angle({a})",
        (also(numeric, signed, without_gradient),),
        bounded(0, 3.2),
    )


def _complex_part(value: ProgramValue, a: ProgramValue) -> bool:
    """Want the imaginary parts of complex numbers whose real parts the first operand is."""
    return value.dtype in ("float32", "float64") and value.dtype == a.dtype and value.shape == a.shape
