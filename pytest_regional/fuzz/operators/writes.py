"""In-place operators, assignments to slices, and ``out=``: what writes to inputs, views and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.value_range import ValueRange, between, constant, product, total
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    ProgramValue,
    Wanted,
    also,
    apart,
    boolean,
    dense,
    fits_into,
    floating,
    matrix_of,
    no_larger_than,
    nonempty,
    numeric,
    ranked,
    real,
    same_dtype,
    same_or_apart,
    same_shape,
    unkinked_at,
    without_gradient,
    writable,
)


def _inplace(name: str, template: str, value_range: Any, *operands: Wanted, choose: Any = None) -> Operator:
    fields = {} if choose is None else {"choose": choose}
    return Operator(name, "write", template, operands, value_range, results=0, writes=(0,), **fields)


def _number(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"value": picks.one_of((2.0, 0.5, -1.0, 1.0, 0.0))}


def _place(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"index": picks.below(values[0].shape[-1])}


def _start(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"start": picks.below(values[0].shape[0]), **_number(values, picks)}


def _column(value: ProgramValue, a: ProgramValue) -> bool:
    return value.dtype == a.dtype and value.shape == a.shape[:-1]


def _mixed(a: ProgramValue, b: ProgramValue, **parameters: Any) -> ValueRange:
    return a.value_range.join(b.value_range)


def _tail(value: ProgramValue, a: ProgramValue) -> bool:
    return (
        value.dtype == a.dtype
        and value.rank == a.rank
        and value.shape[1:] == a.shape[1:]
        and a.shape[0] > 1 == value.shape[0]
    )


def _bounded(value_range: ValueRange) -> ValueRange:
    """Return the range of elements some of which became 1 or -1."""
    return replace(value_range, unit=None if value_range.unit is None else min(value_range.unit, 1.0))


_TARGET = also(numeric, writable)
_ROWS = also(_TARGET, ranked(1), nonempty)
_OTHER = also(numeric, same_dtype, fits_into, same_or_apart)


def _into(name: str, template: str, value_range: Any, *operands: Wanted) -> Operator:
    """Return an ``out=`` form: the first operand is written over, and no gradient may flow."""
    target = also(_TARGET, without_gradient, dense)
    others = tuple(also(numeric, without_gradient, apart, operand) for operand in operands)
    return Operator(name, "out", template, (target, *others), value_range, results=0, writes=(0,))


def _product_fits(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
    return (
        value.dtype == a.dtype
        and value.rank == b.rank == a.rank == 2
        and matrix_of(value, b)
        and a.shape == (b.shape[0], value.shape[1])
    )


OPERATORS = (
    _inplace("add_", "{a}.add_({b})", lambda a, b: total(a.value_range, b.value_range), _TARGET, _OTHER),
    _inplace("mul_", "{a}.mul_({b})", lambda a, b: product(a.value_range, b.value_range), _TARGET, _OTHER),
    _inplace(
        "sub_",
        "{a}.sub_({b}, alpha=0.5)",
        lambda a, b: total(a.value_range, b.value_range.scaled(-0.5)),
        _TARGET,
        _OTHER,
    ),
    _inplace(
        "copy_",
        "{a}.copy_({b})",
        lambda a, b: b.value_range.repeated(),
        also(real, writable),
        also(real, fits_into, same_or_apart),
    ),
    _inplace(
        "add_number_",
        "{a}.add_({value})",
        lambda a, value: total(a.value_range, constant(value)),
        _TARGET,
        choose=_number,
    ),
    _inplace("mul_number_", "{a}.mul_({value})", lambda a, value: a.value_range.scaled(value), _TARGET, choose=_number),
    _inplace("fill_", "{a}.fill_({value})", lambda a, value: constant(value), also(real, writable), choose=_number),
    _inplace("zero_", "{a}.zero_()", lambda a: constant(0.0), also(real, writable)),
    _inplace(
        "relu_",
        "{a}.relu_()",
        lambda a: a.value_range.kept(0.0, max(a.value_range.high, 0.0)),
        also(_TARGET, unkinked_at(0.0)),
    ),
    _inplace(
        "sin_", "{a}.sin_()", lambda a: between(-1, 1, a.value_range), also(floating, _TARGET, no_larger_than(32))
    ),
    _inplace(
        "clamp_",
        "{a}.clamp_(-1.0, 1.0)",
        lambda a: (
            _bounded(a.value_range.kept(max(a.value_range.low, -1.0), min(a.value_range.high, 1.0)))
            if a.value_range.low <= 1.0 and a.value_range.high >= -1.0
            else constant(1.0 if a.value_range.low > 1.0 else -1.0)
        ),
        also(_TARGET, unkinked_at(-1.0, 1.0)),
    ),
    _inplace(
        "masked_fill_",
        "{a}.masked_fill_({b}, {value})",
        lambda a, b, value: a.value_range.join(constant(value)),
        _TARGET,
        also(boolean, fits_into),
        choose=_number,
    ),
    _inplace(
        "lerp_",
        "{a}.lerp_({b}, 0.25)",
        lambda a, b: between(
            min(a.value_range.low, b.value_range.low),
            max(a.value_range.high, b.value_range.high),
            a.value_range,
            b.value_range,
        ),
        _TARGET,
        also(_OTHER, same_shape),
    ),
    _inplace(
        "addcmul_",
        "{a}.addcmul_({b}, {c})",
        lambda a, b, c: total(a.value_range, product(b.value_range, c.value_range)),
        _TARGET,
        _OTHER,
        _OTHER,
    ),
    # Assignments to parts
    _inplace("set_column", "{a}[..., {index}] = {b}", _mixed, _ROWS, also(_column, apart), choose=_place),
    _inplace(
        "set_column_number",
        "{a}[..., {index}] = 1.5",
        lambda a, index: a.value_range.join(constant(1.5)),
        _ROWS,
        choose=_place,
    ),
    _inplace(
        "set_tail",
        "{a}[{start}:] = {value}",
        lambda a, start, value: a.value_range.join(constant(value)),
        _ROWS,
        choose=_start,
    ),
    _inplace("set_last_row", "{a}[-1:] = {b}", _mixed, _ROWS, also(_tail, apart)),
    _inplace(
        "add_to_column",
        "{a}[..., {index}] += {b}",
        lambda a, b, index: a.value_range.join(total(a.value_range, b.value_range)),
        _ROWS,
        also(_column, apart),
        choose=_place,
    ),
    _inplace(
        "mul_part_",
        "{a}[..., 0].mul_({value})",
        lambda a, value: a.value_range.join(a.value_range.scaled(value)),
        _ROWS,
        choose=_number,
    ),
    _inplace(
        "transpose_add_",
        "{a}.mT.add_({value})",
        lambda a, value: total(a.value_range, constant(value)),
        also(_TARGET, ranked(2)),
        choose=_number,
    ),
    # out=
    _into(
        "add_out",
        "torch.add({b}, {c}, out={a})",
        lambda a, b, c: total(b.value_range, c.value_range),
        also(same_dtype, same_shape),
        also(same_dtype, same_shape),
    ),
    _into(
        "sin_out",
        "torch.sin({b}, out={a})",
        lambda a, b: between(-1, 1, b.value_range),
        also(same_dtype, same_shape, no_larger_than(32)),
    ),
    _into(
        "mul_out", "torch.mul({b}, 2.0, out={a})", lambda a, b: b.value_range.scaled(2.0), also(same_dtype, same_shape)
    ),
    _into(
        "mm_out",
        "torch.mm({b}, {c}, out={a})",
        lambda a, b, c: product(b.value_range, c.value_range).summed(b.shape[-1]),
        also(same_dtype, nonempty, ranked(2, 2)),
        also(nonempty, _product_fits),
    ),
)
