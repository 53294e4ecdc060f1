"""New tensors: zeros, ranges, literals; random numbers; and copies, such as ``cat`` and ``roll``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_regional.fuzz.model.arguments import ValueRange, between, constant, integers
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    ProgramValue,
    Wanted,
    also,
    anything,
    floating,
    ranked,
    real,
    same_dtype,
    same_shape,
    writable,
)


def _factory(name: str, template: str, value_range: Any, wanted: Wanted = real, choose: Any = None) -> Operator:
    fields = {} if choose is None else {"choose": choose}
    return Operator(name, "factory", template, (wanted,), value_range, **fields)


def _value(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"value": picks.one_of((1.0, 0.5, -2.0, 0.0))}


def _shape(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"shape": values[0].shape if picks.flag() else (2, 3)}


def _shape_and_value(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {**_shape(values, picks), **_value(values, picks)}


def _size(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"size": 2 + picks.below(4)}


def _constant(a: ProgramValue, value: float, **parameters: Any) -> ValueRange:
    return constant(value)


def _ones(a: ProgramValue, **parameters: Any) -> ValueRange:
    return constant(1.0)


def _zeros(a: ProgramValue, **parameters: Any) -> ValueRange:
    return constant(0.0)


def _counted(a: ProgramValue, size: int) -> ValueRange:
    return integers(0, size - 1, distinct=True)


_FACTORIES = (
    _factory("zeros_like", "torch.zeros_like({a})", _zeros),
    _factory("ones_like", "torch.ones_like({a})", _ones),
    _factory("full_like", "torch.full_like({a}, {value})", _constant, choose=_value),
    _factory("new_zeros", "{a}.new_zeros({shape})", _zeros, choose=_shape),
    _factory("new_ones", "{a}.new_ones({shape})", _ones, choose=_shape),
    _factory("new_full", "{a}.new_full({shape}, {value})", _constant, choose=_shape_and_value),
    _factory(
        "new_tensor",
        "{a}.new_tensor([1.0, -2.0, 0.5, 1.5])",
        lambda a: ValueRange(-2, 1.5, exact=True, distinct=True, unit=0.5),
    ),
    _factory(
        "literal",
        "torch.tensor([0.5, 1.0, -1.5, 2.0], device={a}.device)",
        lambda a: ValueRange(-1.5, 2, exact=True, distinct=True, unit=0.5),
        anything,
    ),
    _factory(
        "literal_index", "torch.tensor([1, 0], device={a}.device)", lambda a: integers(0, 1, distinct=True), anything
    ),
    _factory("zeros", "torch.zeros({shape}, device={a}.device)", _zeros, anything, _shape),
    _factory(
        "arange",
        "torch.arange({size}, device={a}.device)",
        _counted,
        anything,
        _size,
    ),
    _factory(
        "arange_float",
        "torch.arange({size}, dtype={a}.dtype, device={a}.device)",
        _counted,
        choose=_size,
    ),
    _factory(
        "eye",
        "torch.eye({size}, dtype={a}.dtype, device={a}.device)",
        lambda a, size: integers(0, 1),
        choose=_size,
    ),
    _factory(
        "linspace",
        "torch.linspace(-1.0, 1.0, {size}, dtype={a}.dtype, device={a}.device)",
        lambda a, size: ValueRange(-1, 1),
        choose=_size,
    ),
    _factory("scalar", "torch.tensor(1.5, dtype={a}.dtype, device={a}.device)", lambda a: constant(1.5)),
    _factory(
        "causal_mask",
        "torch.ones({size}, {size}, dtype=torch.bool, device={a}.device).tril()",
        lambda a, size: integers(0, 1),
        anything,
        _size,
    ),
    _factory("empty_filled", "torch.empty_like({a}).fill_({value})", _constant, choose=_value),
)


def _draw(name: str, template: str, value_range: Any, wanted: Any = floating, **fields: Any) -> Operator:
    return Operator(name, "random", template, (wanted,), value_range, uses_rng=True, **fields)


def _random_size(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"size": 2 + picks.below(3)}


def _dropped(a: ProgramValue) -> ValueRange:
    return between(min(0.0, a.value_range.low * 2), max(0.0, a.value_range.high * 2), a.value_range)


_RANDOM = (
    _draw("rand_like", "torch.rand_like({a})", lambda a: ValueRange(0, 1)),
    _draw("randn_like", "torch.randn_like({a})", lambda a: ValueRange(-6, 6)),
    _draw("dropout", "torch.nn.functional.dropout({a}, 0.5)", _dropped, elementwise=True),
    _draw(
        "rand",
        "torch.rand({size}, {size}, device={a}.device)",
        lambda a, size: ValueRange(0, 1),
        anything,
        choose=_random_size,
    ),
    _draw(
        "randint",
        "torch.randint(0, 4, ({size},), device={a}.device)",
        lambda a, size: integers(0, 3),
        anything,
        choose=_random_size,
    ),
    _draw(
        "randperm",
        "torch.randperm({size}, device={a}.device)",
        lambda a, size: integers(0, size - 1, distinct=True),
        anything,
        choose=_random_size,
    ),
    _draw(
        "uniform_",
        "{a}.uniform_(0.25, 1.0)",
        lambda a: ValueRange(0.25, 1.0),
        also(floating, writable),
        results=0,
        writes=(0,),
    ),
    _draw("bernoulli", "torch.bernoulli(torch.full_like({a}, 0.5))", lambda a: ValueRange(0, 1)),
    _draw(
        "noise",
        "{a} + torch.rand_like({a}) * 0.5",
        lambda a: between(a.value_range.low, a.value_range.high + 0.5, a.value_range),
        elementwise=True,
    ),
)


def _copy(name: str, call: str, *conditions: Wanted, choose: Any = None, repeats: bool = False) -> Operator:
    def value_range(a: ProgramValue, **parameters: Any) -> ValueRange:
        return a.value_range.repeated() if repeats else a.value_range.moved()

    fields = {} if choose is None else {"choose": choose}
    return Operator(name, "copy", call, (also(anything, *conditions),), value_range, **fields)


def _joined(name: str, call: str, *conditions: Wanted, choose: Any) -> Operator:
    operands = (also(anything, *conditions), also(anything, same_dtype, *conditions, same_shape))
    return Operator(name, "copy", call, operands, lambda a, b, **parameters: a.value_range.join(b.value_range), choose)


def _dimension(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank)}


def _new_dimension(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank + 1)}


def _repeats(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    rank = values[0].rank
    return {"repeats": (2, *(1,) * (rank - 1)) if picks.flag() else (1,) * rank + ((2,) if rank == 0 else ())}


def _shift(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank), "shift": 1 + picks.below(3)}


def _diagonal(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"diagonal": picks.one_of((0, 1, -1))}


def _with_zero(a: ProgramValue, **parameters: Any) -> ValueRange:
    return a.value_range.join(constant(0.0))


def _channels(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.rank == 4


_COPIES = (
    _copy("clone", "{a}.clone()"),
    _copy("contiguous", "{a}.contiguous()"),
    _copy("channels_last", "{a}.contiguous(memory_format=torch.channels_last)", _channels),
    _copy("clone_contiguous", "{a}.clone(memory_format=torch.contiguous_format)"),
    _copy("flip", "torch.flip({a}, ({dim},))", ranked(1), choose=_dimension),
    _copy("roll", "torch.roll({a}, {shift}, {dim})", ranked(1), choose=_shift),
    _copy("tile", "{a}.repeat({repeats})", ranked(0, 3), choose=_repeats, repeats=True),
    _copy("repeat_interleave", "{a}.repeat_interleave(2, {dim})", ranked(1, 3), choose=_dimension, repeats=True),
    _joined("cat", "torch.cat([{a}, {b}], {dim})", ranked(1), choose=_dimension),
    _joined("stack", "torch.stack([{a}, {b}], {dim})", ranked(0, 4), choose=_new_dimension),
    Operator(
        "cat_itself", "copy", "torch.cat([{a}, {a}])", (also(anything, ranked(1)),), lambda a: a.value_range.repeated()
    ),
    Operator("tril", "copy", "torch.tril({a}, {diagonal})", (also(anything, ranked(2)),), _with_zero, _diagonal),
    Operator("triu", "copy", "torch.triu({a}, {diagonal})", (also(anything, ranked(2)),), _with_zero, _diagonal),
    Operator("pad", "copy", "torch.nn.functional.pad({a}, (1, 0))", (also(anything, ranked(1)),), _with_zero),
    Operator("diag_embed", "copy", "torch.diag_embed({a})", (also(anything, ranked(1, 2)),), _with_zero),
    Operator(
        "constant_pad",
        "copy",
        "torch.nn.functional.pad({a}, (0, 1, 1, 0), value=0.5)",
        (also(anything, ranked(2), lambda value, *before: value.is_float),),
        lambda a: a.value_range.join(constant(0.5)),
    ),
)

OPERATORS = (*_FACTORIES, *_RANDOM, *_COPIES)
