"""What shares memory unseen: identities, windows of a storage, writes to slices, and custom operators that write.

An operator that returns its operand itself is no copy: who writes to its result writes to the operand. What eager
copies although nothing changes (``pad_nothing``) is the opposite, and must stay apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_regional._torch.tracing import base_of
from pytest_regional.fuzz.model.arguments import ValueRange, product, total
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    ProgramValue,
    Wanted,
    also,
    another,
    anything,
    apart,
    floating,
    no_larger_than,
    nonempty,
    own_places,
    ranked,
    real,
    same_dtype,
    same_shape,
    without_gradient,
    writable,
)


def _moved(a: ProgramValue, **parameters: Any) -> ValueRange:
    return a.value_range.moved()


def _same(name: str, template: str, *conditions: Wanted) -> Operator:
    """Return an operator whose result is its operand, or shows all of it unchanged."""
    return Operator(name, "view", template, (also(anything, *conditions),), _moved, autocast=True)


def _copied(name: str, template: str, *conditions: Wanted) -> Operator:
    """Return an operator that computes nothing, and whose result is a copy nevertheless."""
    return Operator(name, "copy", template, (also(anything, *conditions),), _moved)


def _not_bool(value: ProgramValue, *before: ProgramValue) -> bool:
    return not value.is_bool


_IDENTITIES = (
    _same("slice_of_all", "{a}[:]", ranked(1)),
    _same("to_same", "{a}.to({a}.dtype)"),
    _same("type_as_itself", "{a}.type_as({a})"),
    _same("dropout_in_eval", "torch.nn.functional.dropout({a}, 0.5, False)", real),
    _same("dropout_of_none", "torch.nn.functional.dropout({a}, 0.0)", real),
    _same("real_part", "torch.real({a})", real),
    _same("positive", "torch.positive({a})", _not_bool),
    _same("at_least_2d", "torch.atleast_2d({a})"),
    _same("expand_as_itself", "{a}.expand_as({a})"),
    _same("flatten_one", "{a}.flatten(0, 0)", ranked(1)),
    _same("move_no_dimension", "{a}.movedim(0, 0)", ranked(1)),
    _copied("pad_nothing", "torch.nn.functional.pad({a}, (0, 0))", ranked(1)),
    _copied("tile_once", "{a}.repeat({a}.dim() * (1,))", ranked(1)),
    _copied("mul_one", "{a} * 1", real),
)


# Windows of a storage

#: Storages with more elements are not looked at through other strides.
_LARGEST_STORAGE = 4096


def _elements(value: ProgramValue) -> int:
    """Return how many elements of its dtype the storage of ``value`` has."""
    return int(value.tensor.untyped_storage().nbytes() // value.tensor.element_size())


def _small(value: ProgramValue, *before: ProgramValue) -> bool:
    return 0 < _elements(value) <= _LARGEST_STORAGE and not value.tensor.is_complex()


def _window(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    tensor, count = values[0].tensor, _elements(values[0])
    shape, strides, offset = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
    windows: list[tuple[tuple[int, ...], tuple[int, ...], int]] = [
        (shape, strides, offset),
        (shape, strides, 0),
        (shape[::-1], strides[::-1], offset),
        ((count,), (1,), 0),
        ((count - offset,), (1,), offset),
        ((3, count), (0, 1), 0),
    ]
    if count > 1:
        windows += [((count - 1, 2), (1, 1), 0), ((count // 2,), (2,), 1)]
    sizes, steps, start = picks.one_of(windows)
    return {"shape": sizes, "strides": steps, "offset": start}


_WINDOWS = (
    Operator(
        "as_strided",
        "view",
        "{a}.as_strided({shape}, {strides}, {offset})",
        (also(anything, nonempty, _small, own_places),),
        lambda a, **parameters: a.value_range.repeated(),
        _window,
        autocast=True,
    ),
)


# Writes to slices of one memory

_TARGET = also(floating, writable)
_ROWS = also(_TARGET, ranked(1), nonempty, lambda value, *before: value.shape[0] > 1)


def _write(
    name: str, template: str, value_range: Any, *operands: Wanted, choose: Any = None, **fields: Any
) -> Operator:
    fields |= {} if choose is None else {"choose": choose}
    fields = {"writes": (0,), **fields}
    return Operator(name, "write", template, operands, value_range, results=0, **fields)


def _half(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    """Choose how many rows two slices have that share none."""
    return {"length": 1 + picks.below(values[0].shape[0] // 2)}


def _number(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"value": picks.one_of((2.0, 0.5, -1.0, 0.0))}


def _row(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"index": picks.below(values[0].shape[0])}


def _own_elements(a: ProgramValue, **parameters: Any) -> ValueRange:
    return a.value_range.repeated()


def _twice(a: ProgramValue, **parameters: Any) -> ValueRange:
    return a.value_range.join(total(a.value_range, a.value_range))


def _square(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.rank >= 2 and value.shape[-1] == value.shape[-2]


def _no_view(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor that eager allows to detach in place, and no input, of which Dynamo detaches none so."""
    return value.requires_grad and base_of(value.tensor) is None


_WRITES = (
    _write("copy_between_slices", "{a}[:{length}].copy_({a}[-{length}:])", _own_elements, _ROWS, choose=_half),
    _write("add_between_slices", "{a}[-{length}:].add_({a}[:{length}])", _twice, _ROWS, choose=_half),
    _write("shift_rows", "{a}[1:] = {a}[:-1].clone()", _own_elements, _ROWS),
    _write("shift_rows_back", "{a}[:-1] = {a}[1:].clone()", _own_elements, _ROWS),
    _write("copy_flipped", "{a}.copy_({a}.flip(0))", _moved, _ROWS),
    _write("add_transposed", "{a}.add_({a}.mT.clone())", _twice, also(_TARGET, _square)),
    _write(
        "zero_row",
        "{a}.select(0, {index}).zero_()",
        lambda a, index: a.value_range.join(ValueRange(0.0, 0.0, exact=True)),
        _ROWS,
        choose=_row,
    ),
    _write(
        "mul_detached",
        "{a}.detach().mul_({value})",
        lambda a, value: a.value_range.scaled(value),
        _TARGET,
        choose=_number,
    ),
    _write("detach_", "{a}.detach_()", _moved, also(_TARGET, _no_view)),
    _write("foreach_add_flipped", "torch._foreach_add_([{a}], [{a}.flip(0)])", _twice, _ROWS),
    _write(
        "foreach_mul_slices",
        "torch._foreach_mul_([{a}[:{length}], {a}[-{length}:]], 0.5)",
        lambda a, length: a.value_range.join(a.value_range.scaled(0.5)),
        _ROWS,
        choose=_half,
    ),
    _write(
        "foreach_add_slices", "torch._foreach_add_([{a}[:{length}]], [{a}[-{length}:]])", _twice, _ROWS, choose=_half
    ),
    _write(
        "foreach_exchange",
        "torch._foreach_copy_([{a}, {b}], [{b}.clone(), {a}.clone()])",
        lambda a, b: (b.value_range.repeated(), a.value_range.repeated()),
        also(_TARGET, without_gradient),
        also(_TARGET, without_gradient, same_dtype, same_shape, apart),
        writes=(0, 1),
    ),
)


# Writes by what the compiler does not see through


def _custom(name: str, template: str, value_range: Any, *operands: Wanted, needs: str, **fields: Any) -> Operator:
    return Operator(name, "custom", template, operands, value_range, needs=(needs,), **fields)


_CUSTOM = (
    _custom(
        "custom_exchange",
        "exchange({a}, {b})",
        lambda a, b: (b.value_range.repeated(), a.value_range.repeated()),
        also(_TARGET, without_gradient),
        also(_TARGET, without_gradient, same_dtype, same_shape, apart),
        needs="exchange",
        results=0,
        writes=(0, 1),
    ),
    _custom(
        "custom_between_slices",
        "accumulate({a}[:{length}], {a}[-{length}:])",
        _twice,
        also(_ROWS, without_gradient),
        choose=_half,
        needs="accumulate",
        results=0,
        writes=(0,),
    ),
    _custom(
        "custom_onto_clone",
        "accumulated({a}, {b})",
        lambda a, b: total(a.value_range, b.value_range),
        also(floating, without_gradient),
        also(floating, same_dtype, same_shape, without_gradient),
        needs="accumulated",
    ),
    _custom(
        "function_writes_inside",
        "HalvedInside.apply({a})",
        lambda a: ValueRange(-1.0, 1.0),
        also(floating, no_larger_than(32)),
        needs="HalvedInside",
    ),
    _custom(
        "function_matmul_in_place",
        "MultipliedInPlace.apply({a}, {b})",
        lambda a, b: product(a.value_range, b.value_range).summed(a.shape[-1]),
        also(floating, ranked(2, 2), nonempty),
        also(floating, same_dtype, another, lambda value, a: value.shape == (a.shape[1], a.shape[1])),
        needs="MultipliedInPlace",
    ),
    _custom(
        "function_writes_buffer",
        "ProductThroughBuffer.apply({a}, {b})",
        lambda a, b: (product(a.value_range, a.value_range), a.value_range.scaled(2.0)),
        floating,
        also(_TARGET, without_gradient, same_dtype, same_shape, apart),
        needs="ProductThroughBuffer",
        writes_constants=True,
        writes=(1,),
    ),
    _custom(
        "function_marks_dirty",
        "add_in_place({a}, {b})",
        lambda a, b: total(a.value_range, b.value_range),
        also(_TARGET, lambda value, *before: base_of(value.tensor) is None),
        also(floating, same_dtype, same_shape, apart),
        needs="add_in_place",
        results=0,
        writes=(0,),
    ),
)

OPERATORS = (*_IDENTITIES, *_WINDOWS, *_WRITES, *_CUSTOM)
