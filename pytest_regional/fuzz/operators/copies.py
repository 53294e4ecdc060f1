"""Copies: new memory that holds the same elements, laid out, joined or repeated otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_regional.fuzz.facts import Facts
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    Value,
    Wanted,
    also,
    anything,
    ranked,
    same_dtype,
    same_shape,
)


def _copy(name: str, call: str, *conditions: Wanted, choose: Any = None, repeats: bool = False) -> Operator:
    def facts(a: Value, **parameters: Any) -> Facts:
        return a.facts.repeated() if repeats else a.facts.moved()

    fields = {} if choose is None else {"choose": choose}
    return Operator(name, "copy", call, (also(anything, *conditions),), facts, **fields)


def _joined(name: str, call: str, *conditions: Wanted, choose: Any) -> Operator:
    operands = (also(anything, *conditions), also(anything, same_dtype, *conditions, same_shape))
    return Operator(name, "copy", call, operands, lambda a, b, **parameters: a.facts.join(b.facts), choose)


def _dimension(values: Sequence[Value], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank)}


def _new_dimension(values: Sequence[Value], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank + 1)}


def _repeats(values: Sequence[Value], picks: Picks) -> Parameters:
    rank = values[0].rank
    return {"repeats": (2, *(1,) * (rank - 1)) if picks.flag() else (1,) * rank + (2,) * (rank == 0)}


def _shift(values: Sequence[Value], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank), "shift": 1 + picks.below(3)}


def _diagonal(values: Sequence[Value], picks: Picks) -> Parameters:
    return {"diagonal": picks.one_of((0, 1, -1))}


def _with_zero(a: Value, **parameters: Any) -> Facts:
    return a.facts.join(Facts(0.0, 0.0, exact=True))


def _channels(value: Value, *before: Value) -> bool:
    return value.rank == 4


OPERATORS = (
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
    Operator("cat_itself", "copy", "torch.cat([{a}, {a}])", (also(anything, ranked(1)),), lambda a: a.facts.repeated()),
    Operator("tril", "copy", "torch.tril({a}, {diagonal})", (also(anything, ranked(2)),), _with_zero, _diagonal),
    Operator("triu", "copy", "torch.triu({a}, {diagonal})", (also(anything, ranked(2)),), _with_zero, _diagonal),
    Operator("pad", "copy", "torch.nn.functional.pad({a}, (1, 0))", (also(anything, ranked(1)),), _with_zero),
    Operator("diag_embed", "copy", "torch.diag_embed({a})", (also(anything, ranked(1, 2)),), _with_zero),
    Operator(
        "constant_pad",
        "copy",
        "torch.nn.functional.pad({a}, (0, 1, 1, 0), value=0.5)",
        (also(anything, ranked(2), lambda value, *before: value.is_float),),
        lambda a: a.facts.join(Facts(0.5, 0.5, exact=True)),
    ),
)
