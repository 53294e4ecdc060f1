"""Operators that compute each element of others at the same place, or of its place alone."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import z3

from pytest_regional.verify import arithmetic as reals
from pytest_regional.verify import symbols
from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.operators.calls import (
    Call,
    number_of,
    source_of,
    together,
    wrapped_as,
)
from pytest_regional.verify.symbols import Expression


def _arithmetic(compute: Callable[..., Expression]) -> Callable[[Call], Expression]:
    """Return the meaning of an operator that computes with numbers, or wraps integers."""

    def meaning(call: Call) -> Expression:
        dtype = call.node.meta["val"].dtype
        if dtype.is_floating_point:
            return compute(*(reals.as_real(call.operand(value)) for value in call.arguments))
        return wrapped_as(compute(*(reals.as_integer(call.operand(value)) for value in call.arguments)), dtype)

    return meaning


def _scaled(compute: Callable[[Expression, Expression], Expression]) -> Callable[[Call], Expression]:
    """Return the meaning of an addition or subtraction, which may scale its second operand."""

    def meaning(call: Call) -> Expression:
        dtype, alpha = call.node.meta["val"].dtype, call.given(2, "alpha", 1)
        left, right = (call.operand(value) for value in call.arguments[:2])
        if dtype.is_floating_point:
            right = reals.as_real(right)
            scaled = right if alpha == 1 else right * reals.as_real(number_of(alpha))
            return compute(reals.as_real(left), scaled)
        if dtype == torch.bool:
            return z3.Or(reals.as_truth(left), reals.as_truth(right))
        right = reals.as_integer(right)
        scaled = right if alpha == 1 else right * number_of(alpha)
        return wrapped_as(compute(reals.as_integer(left), scaled), dtype)

    return meaning


def _of_floats(compute: Callable[..., Expression]) -> Callable[[Call], Expression]:
    return lambda call: compute(*(reals.as_real(call.operand(value)) for value in call.arguments))


def _unknown(name: str) -> Callable[[Call], Expression]:
    return _of_floats(lambda *operands: reals.function(name, *operands))


def _comparison(compare: Callable[[Any, Any], Expression]) -> Callable[[Call], Expression]:
    def meaning(call: Call) -> Expression:
        values = together(*(call.operand(value) for value in call.arguments))
        ordered = compare not in (operator.eq, operator.ne)
        return compare(*(map(reals.as_integer, values) if ordered and z3.is_bool(values[0]) else values))

    return meaning


def _logic(compute: Callable[..., Expression], whole: bool = False) -> Callable[[Call], Expression]:
    def meaning(call: Call) -> Expression:
        if whole and call.node.meta["val"].dtype != torch.bool:
            raise NotVerifiableError(f"{call.node.target} of integers")
        return compute(*(reals.as_truth(call.operand(value)) for value in call.arguments))

    return meaning


def _divided(call: Call) -> Expression:
    left, right = (call.operand(value) for value in call.arguments[:2])
    mode, dtype = call.node.kwargs.get("rounding_mode"), call.node.meta["val"].dtype
    if mode is None:
        return reals.divided(reals.as_real(left), reals.as_real(right))
    if dtype.is_floating_point:
        quotient = reals.divided(reals.as_real(left), reals.as_real(right))
        return reals.function("floor" if mode == "floor" else "trunc", quotient)
    divide = symbols.floored_quotient if mode == "floor" else symbols.truncated_quotient
    return divide(reals.as_integer(left), reals.as_integer(right))


def _clamped(call: Call) -> Expression:
    value, low, high = call.operand(call.arguments[0]), call.given(1, "min"), call.given(2, "max")
    if low is not None:
        value = _chosen(value, call.operand(low), operator.gt)
    return value if high is None else _chosen(value, call.operand(high), operator.lt)


def _bounded(first: Callable[[Any, Any], Any]) -> Callable[[Call], Expression]:
    return lambda call: _chosen(call.operand(call.arguments[0]), call.operand(call.arguments[1]), first)


def _chosen(one: Expression, other: Expression, first: Callable[[Any, Any], Any]) -> Expression:
    left, right = together(one, other)
    return z3.If(first(left, right), left, right)


def _where(call: Call) -> Expression:
    condition, *values = (call.operand(value) for value in call.arguments)
    return z3.If(reals.as_truth(condition), *together(*values))


def _sign(value: Expression) -> Expression:
    one, none, other = together(z3.IntVal(1), z3.IntVal(0), value)
    return z3.If(other > none, one, z3.If(other < none, -one, none))


def _added(compute: Callable[[Expression, Expression], Expression]) -> Callable[[Call], Expression]:
    """Return the meaning of adding what ``compute`` makes of two operands, scaled."""

    def meaning(call: Call) -> Expression:
        value, *operands = (reals.as_real(call.operand(argument)) for argument in call.arguments[:3])
        return value + reals.as_real(number_of(call.node.kwargs.get("value", 1))) * compute(*operands)

    return meaning


def _converted(call: Call) -> Expression:
    """Return an element as another type: integers that do not fit wrap, what floats become is as in the kernel."""
    value, dtype = call.operand(call.arguments[0]), call.node.meta["val"].dtype
    old = source_of(call).meta["val"].dtype
    if dtype.is_floating_point or torch.bool in (old, dtype) or old.is_floating_point or dtype.is_complex:
        return value
    own, other = (symbols.limits(kind.itemsize * 8, kind.is_signed) for kind in (old, dtype))
    return value if other[0] <= own[0] and own[1] <= other[1] else wrapped_as(value, dtype)


def _first(call: Call) -> Expression:
    return call.operand(call.arguments[0])


def _remainder(real: str, whole: Callable[[Expression, Expression], Expression]) -> Callable[[Call], Expression]:
    def meaning(call: Call) -> Expression:
        left, right = (call.operand(value) for value in call.arguments)
        if call.node.meta["val"].dtype.is_floating_point:
            return reals.function(real, reals.as_real(left), reals.as_real(right))
        return whole(reals.as_integer(left), reals.as_integer(right))

    return meaning


def _filled(number: int, name: str = "fill_value") -> Callable[[Call], Expression]:
    return lambda call: number_of(call.given(number, name))


def _constant(value: int) -> Callable[[Call], Expression]:
    return lambda call: z3.IntVal(value)


def _counted(call: Call) -> Expression:
    start, step = call.node.kwargs.get("start", 0), call.node.kwargs.get("step", 1)
    return call.size(start) + call.place[0] * call.size(step)


def _ranged(call: Call) -> Expression:
    """Return the meaning of ``arange``, which is given an end, or a start and an end, and perhaps a step."""
    given = list(map(number_of, call.arguments))
    start = given[0] if len(given) > 1 else z3.IntVal(0)
    step = given[2] if len(given) > 2 else number_of(call.node.kwargs.get("step", 1))
    start, step, at = together(start, step, call.place[0])
    return start + at * step


# What kernels call by the same name, and of which nothing else needs to be known.
# fmt: off
_OF_FLOATS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin",
    "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "floor", "ceil", "trunc", "lgamma", "atan2",
    "hypot",
)
# fmt: on

ELEMENTWISE: dict[str, Callable[[Call], Expression]] = {
    "aten::add": _scaled(operator.add),
    "aten::sub": _scaled(operator.sub),
    "aten::rsub": _scaled(lambda a, b: b - a),
    "aten::mul": lambda call: (
        _logic(z3.And)(call) if call.node.meta["val"].dtype == torch.bool else _arithmetic(operator.mul)(call)
    ),
    "aten::neg": _arithmetic(operator.neg),
    "aten::square": _arithmetic(lambda a: a * a),
    "aten::abs": _arithmetic(reals.absolute),
    "aten::div": _divided,
    "aten::true_divide": _divided,
    "aten::reciprocal": _of_floats(lambda a: reals.function("reciprocal", a)),
    "aten::sqrt": _unknown("sqrt"),
    "aten::rsqrt": _of_floats(lambda a: reals.function("reciprocal", reals.function("sqrt", a))),
    "aten::sigmoid": _of_floats(reals.sigmoid),
    "aten::pow": _of_floats(reals.power),
    "aten::fmod": _remainder("fmod", symbols.truncated_remainder),
    "aten::remainder": _remainder("remainder", symbols.floored_remainder),
    "aten::relu": _arithmetic(lambda a: reals.larger(a, z3.RealVal(0) if a.sort().eq(reals.REAL) else z3.IntVal(0))),
    "aten::maximum": _arithmetic(reals.larger),
    "aten::minimum": _arithmetic(reals.smaller),
    "prims::fma": _of_floats(lambda a, b, c: a * b + c),
    "aten::clamp": _clamped,
    "aten::clamp_min": _bounded(operator.gt),
    "aten::clamp_max": _bounded(operator.lt),
    "aten::where": _where,
    "aten::masked_fill": lambda call: z3.If(
        reals.as_truth(call.operand(call.arguments[1])),
        *together(call.operand(call.arguments[2]), call.operand(call.arguments[0])),
    ),
    "aten::eq": _comparison(operator.eq),
    "aten::ne": _comparison(operator.ne),
    "aten::lt": _comparison(operator.lt),
    "aten::le": _comparison(operator.le),
    "aten::gt": _comparison(operator.gt),
    "aten::ge": _comparison(operator.ge),
    "aten::logical_not": _logic(z3.Not),
    "aten::logical_and": _logic(z3.And),
    "aten::logical_or": _logic(z3.Or),
    "aten::logical_xor": _logic(z3.Xor),
    "aten::bitwise_not": _logic(z3.Not, whole=True),
    "aten::bitwise_and": _logic(z3.And, whole=True),
    "aten::bitwise_or": _logic(z3.Or, whole=True),
    "aten::bitwise_xor": _logic(z3.Xor, whole=True),
    "aten::isnan": lambda call: z3.BoolVal(False),
    "aten::isinf": lambda call: z3.BoolVal(False),
    **{f"aten::{name}": _unknown(name) for name in _OF_FLOATS},
    "aten::round": _unknown("nearbyint"),
    "aten::special_erfcx": _unknown("erfcx"),
    "aten::copysign": _unknown("copysign"),
    "aten::nextafter": _unknown("nextafter"),
    "aten::sign": lambda call: _sign(call.operand(call.arguments[0])),
    "aten::addcmul": _added(lambda a, b: a * b),
    "aten::addcdiv": _added(reals.divided),
    **dict.fromkeys(
        (
            "aten::clone",
            "aten::alias",
            "aten::detach",
            "aten::contiguous",
            "aten::lift_fresh_copy",
            "prims::device_put",
        ),
        _first,
    ),
    "prims::convert_element_type": _converted,
    "aten::_to_copy": _converted,
    "aten::full": _filled(1),
    "aten::full_like": _filled(1),
    "aten::new_full": _filled(2),
    "aten::fill": lambda call: call.operand(call.arguments[1]),
    "aten::scalar_tensor": _filled(0),
    **dict.fromkeys(("aten::zeros", "aten::zeros_like", "aten::new_zeros"), _constant(0)),
    **dict.fromkeys(("aten::ones", "aten::ones_like", "aten::new_ones"), _constant(1)),
    "prims::iota": _counted,
    "aten::arange": _ranged,
}
"""What operators mean, by their names; overloads mean the same with other arguments."""
