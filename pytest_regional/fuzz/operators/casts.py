"""Casts between dtypes, and looks at the same bits as another dtype."""

from __future__ import annotations

from typing import Any

from pytest_regional.fuzz.facts import Facts, integers
from pytest_regional.fuzz.operators.operator import Operator, Value, Wanted, also, anything, bits, exact, real


def _other_than(dtype: str) -> Wanted:
    return lambda value, *before: value.dtype != dtype


def _rounded(a: Value) -> Facts:
    # Two numbers may become one, and integers of up to 512 need 9 bits.
    return Facts(a.facts.low, a.facts.high, a.facts.exact, finite=a.facts.finite)


def _to_float(dtype: str) -> Operator:
    return Operator(f"to_{dtype}", "cast", f"{{a}}.to(torch.{dtype})", (also(anything, _other_than(dtype)),), _rounded)


def _to_integer(name: str, call: str, facts: Any, *conditions: Wanted) -> Operator:
    return Operator(name, "cast", call, (also(exact, *conditions),), facts)


def _whole(a: Value) -> Facts:
    return integers(int(a.facts.low), int(a.facts.high))


OPERATORS = (
    *map(_to_float, ("float32", "float64", "bfloat16", "float16")),
    _to_integer("to_int64", "{a}.to(torch.int64)", _whole, _other_than("int64")),
    _to_integer("to_int32", "{a}.to(torch.int32)", _whole, _other_than("int32")),
    _to_integer("to_bool", "{a}.to(torch.bool)", lambda a: integers(0, 1), _other_than("bool")),
    Operator("float", "cast", "{a}.float()", (anything,), lambda a: a.facts),
    Operator(
        "type_as",
        "cast",
        "{a}.type_as({b})",
        (real, real),
        lambda a, b: _rounded(a),
    ),
    Operator(
        "view_bits",
        "cast",
        "{a}.view(torch.int32).view(torch.float32)",
        (also(real, bits, lambda value, *before: value.dtype == "float32" and not value.requires_grad),),
        lambda a: a.facts,
    ),
)
