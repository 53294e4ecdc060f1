"""Reading and writing by index: gather, scatter, select, put; writes in place, to parts, and to ``out=``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.arguments import ValueRange, between, constant, integers, product, total
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    ProgramValue,
    Wanted,
    also,
    anything,
    apart,
    boolean,
    dense,
    distinct,
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


def _mixed_write(a: ProgramValue, b: ProgramValue, **parameters: Any) -> ValueRange:
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


def _write_into(name: str, template: str, value_range: Any, *operands: Wanted) -> Operator:
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


_WRITES_ROWS = (
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
    _inplace("set_column", "{a}[..., {index}] = {b}", _mixed_write, _ROWS, also(_column, apart), choose=_place),
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
    _inplace("set_last_row", "{a}[-1:] = {b}", _mixed_write, _ROWS, also(_tail, apart)),
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
    _write_into(
        "add_out",
        "torch.add({b}, {c}, out={a})",
        lambda a, b, c: total(b.value_range, c.value_range),
        also(same_dtype, same_shape),
        also(same_dtype, same_shape),
    ),
    _write_into(
        "sin_out",
        "torch.sin({b}, out={a})",
        lambda a, b: between(-1, 1, b.value_range),
        also(same_dtype, same_shape, no_larger_than(32)),
    ),
    _write_into(
        "mul_out", "torch.mul({b}, 2.0, out={a})", lambda a, b: b.value_range.scaled(2.0), also(same_dtype, same_shape)
    ),
    _write_into(
        "mm_out",
        "torch.mm({b}, {c}, out={a})",
        lambda a, b, c: product(b.value_range, c.value_range).summed(b.shape[-1]),
        also(same_dtype, nonempty, ranked(2, 2)),
        also(nonempty, _product_fits),
    ),
)


def _index(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.dtype == "int64" and value.value_range.low >= 0 and not value.unbacked


def _index_of_rows(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want indices into the first dimension of the first operand."""
    # Dynamo makes a number of a scalar, and then has to know it.
    return _index(value) and value.rank >= 1 and before[0].rank >= 1 and value.value_range.high < before[0].shape[0]


def _vector(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.rank == 1


def _index_by_element(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want indices for ``gather`` and ``scatter`` along the first dimension."""
    first = before[0]
    return (
        _index_of_rows(value, first)
        and value.rank == first.rank
        and all(ours <= theirs for ours, theirs in zip(value.shape[1:], first.shape[1:], strict=True))
    )


def _one_each(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
    """Want one element for each index, of the first operand's dtype."""
    return value.dtype == a.dtype and value.shape == b.shape


def _rows_for(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
    """Want one row for each index, of the first operand's dtype."""
    return value.dtype == a.dtype and value.shape == (*b.shape, *a.shape[1:])


def _two_rows(values: Sequence[ProgramValue], picks: Picks) -> Parameters | None:
    size = values[0].shape[0]
    first = picks.below(size)
    return {"first": first, "second": (first + 1 + picks.below(size - 1)) % size}


def _same_row_twice(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    row = picks.below(values[0].shape[0])
    return {"first": row, "second": row}


def _rows(least: int) -> Wanted:
    return lambda value, *before: value.rank >= 1 and value.shape[0] >= least


def _one_row(value: ProgramValue, a: ProgramValue) -> bool:
    return value.dtype == a.dtype and value.shape == a.shape[1:]


def _dimension(values: Sequence[ProgramValue], picks: Picks) -> Parameters | None:
    high = values[1].value_range.high
    fitting = [dim for dim, size in enumerate(values[0].shape) if size > high]
    return {"dim": picks.one_of(fitting)} if fitting else None


def _mixed(a: ProgramValue, b: ProgramValue, *others: ProgramValue, **parameters: Any) -> ValueRange:
    return a.value_range.join(others[0].value_range if others else b.value_range)


def _repeated(a: ProgramValue, *others: ProgramValue, **parameters: Any) -> ValueRange:
    return a.value_range.repeated()


def _accumulated(a: ProgramValue, b: ProgramValue, c: ProgramValue, **parameters: Any) -> ValueRange:
    return total(a.value_range, c.value_range.summed(max(b.count, 1)))


def _into(value: ProgramValue, *before: ProgramValue) -> bool:
    return fits_into(value, *before) and value.dtype == before[0].dtype


def _reading(name: str, template: str, *operands: Wanted, choose: Any = None, value_range: Any = _repeated) -> Operator:
    fields = {} if choose is None else {"choose": choose}
    return Operator(name, "index", template, operands, value_range, **fields)


def _scattering(
    name: str, template: str, *operands: Wanted, value_range: Any = _accumulated, **fields: Any
) -> Operator:
    return Operator(name, "scatter", template, operands, value_range, **fields)


_TABLE = also(anything, ranked(1), nonempty)
_NUMBERS = also(numeric, ranked(1), nonempty)

OPERATORS = (
    _reading("index", "{a}[{b}]", _TABLE, _index_of_rows),
    _reading("index_select", "torch.index_select({a}, {dim}, {b})", _TABLE, also(_index, _vector), choose=_dimension),
    _reading("gather", "torch.gather({a}, 0, {b})", _TABLE, _index_by_element),
    _reading("take", "torch.take({a}, {b})", _TABLE, _index_of_rows),
    _reading("take_along", "torch.take_along_dim({a}, {b}, 0)", _TABLE, _index_by_element),
    _reading(
        "embedding", "torch.nn.functional.embedding({b}, {a})", also(numeric, ranked(2, 2), nonempty), _index_of_rows
    ),
    _reading("index_list", "{a}[[{first}, {second}]]", also(_TABLE, _rows(2)), choose=_two_rows),
    _reading("index_list_twice", "{a}[[{first}, {second}]]", also(_TABLE, _rows(1)), choose=_same_row_twice),
    _reading("index_last", "{a}[..., [0, -1]]", _TABLE),
    _reading(
        "one_hot",
        "torch.nn.functional.one_hot({a}, 4)",
        also(_index, lambda v, *b: v.value_range.high < 4),
        value_range=lambda a: integers(0, 1),
    ),
    _scattering(
        "scatter_add",
        "torch.scatter_add({a}, 0, {b}, {c})",
        _NUMBERS,
        _index_by_element,
        _one_each,
    ),
    _scattering("index_add", "torch.index_add({a}, 0, {b}, {c})", _NUMBERS, also(_vector, _index_of_rows), _rows_for),
    _scattering(
        "index_put_accumulate",
        "torch.index_put({a}, ({b},), {c}, accumulate=True)",
        _NUMBERS,
        _index_of_rows,
        _rows_for,
    ),
    _scattering(
        "index_put",
        "torch.index_put({a}, ({b},), {c})",
        _TABLE,
        also(_index_of_rows, distinct),
        _rows_for,
        value_range=_mixed,
    ),
    _scattering(
        "index_copy",
        "torch.index_copy({a}, 0, {b}, {c})",
        _TABLE,
        also(_vector, _index_of_rows, distinct),
        _rows_for,
        value_range=_mixed,
    ),
    _scattering(
        "scatter",
        "torch.scatter({a}, 0, {b}, {c})",
        _TABLE,
        also(_index_by_element, distinct),
        _one_each,
        value_range=_mixed,
    ),
    _scattering(
        "index_fill",
        "torch.index_fill({a}, 0, {b}, 0.5)",
        _NUMBERS,
        also(_vector, _index_of_rows),
        value_range=lambda a, b: a.value_range.join(constant(0.5)),
    ),
    _scattering(
        "select_scatter",
        "torch.select_scatter({a}, {b}, 0, 0)",
        _TABLE,
        _one_row,
        value_range=_mixed,
    ),
    _scattering(
        "slice_scatter", "torch.slice_scatter({a}, {b})", _TABLE, also(same_dtype, same_shape), value_range=_mixed
    ),
    _scattering(
        "masked_scatter",
        "torch.masked_scatter({a}, {b}, {c})",
        _TABLE,
        also(boolean, same_shape),
        also(lambda value, *before: value.dtype == before[0].dtype, same_shape),
        value_range=_mixed,
    ),
    # Statements that write
    _scattering(
        "put_list",
        "{a}[[{first}, {second}]] = {b}",
        also(_TABLE, _rows(2), writable),
        also(_into, apart),
        value_range=_mixed,
        choose=_two_rows,
        results=0,
        writes=(0,),
    ),
    _scattering(
        "put_rows",
        "{a}[{b}] = {value}",
        also(_NUMBERS, writable),
        also(_index_of_rows, apart),
        value_range=lambda a, b, value: a.value_range.join(constant(value)),
        choose=lambda values, picks: {"value": picks.one_of((1.0, 0.5))},
        results=0,
        writes=(0,),
    ),
    _scattering(
        "put_mask",
        "{a}[{b}] = 0.5",
        also(_NUMBERS, writable),
        also(boolean, same_shape),
        value_range=lambda a, b: a.value_range.join(constant(0.5)),
        results=0,
        writes=(0,),
    ),
    _scattering(
        "scatter_add_",
        "{a}.scatter_add_(0, {b}, {c})",
        also(_NUMBERS, writable),
        also(_index_by_element, apart),
        also(_one_each, apart),
        results=0,
        writes=(0,),
    ),
    _scattering(
        "index_add_",
        "{a}.index_add_(0, {b}, {c})",
        also(_NUMBERS, writable),
        also(_vector, _index_of_rows, apart),
        also(_rows_for, apart),
        results=0,
        writes=(0,),
    ),
    _scattering(
        "index_put_",
        "{a}.index_put_(({b},), {c}, accumulate=True)",
        also(_NUMBERS, writable),
        also(_index_of_rows, apart),
        also(_rows_for, apart),
        results=0,
        writes=(0,),
    ),
    _reading(
        "bincount_weights",
        "torch.zeros(4, dtype={b}.dtype, device={b}.device).index_add(0, {a}, {b})",
        also(_index, _vector, lambda value, *before: value.value_range.high < 4),
        also(numeric, lambda value, a: value.shape == a.shape),
        value_range=lambda a, b: b.value_range.summed(a.count),
    ),
    *_WRITES_ROWS,
)
