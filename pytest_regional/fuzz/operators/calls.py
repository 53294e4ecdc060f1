"""Calls of a program's blocks (plain, checkpointed, nested, in branches, in loops), and of custom operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_regional.fuzz.model.arguments import ValueRange, between, integers, product, total
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    ProgramValue,
    Wanted,
    also,
    another,
    apart,
    as_made,
    exact,
    floating,
    no_larger_than,
    nonempty,
    same_dtype,
    same_shape,
    without_gradient,
    writable,
)

Function = Callable[..., Any]


def _first(a: Any, block: Function) -> Any:
    return block(a)


def _first_of_two(a: Any, b: Any, block: Function) -> Any:
    return block(a, b)


def _result(*values: Any, **parameters: Any) -> ValueRange:
    """Return the range of the block's result, which stand behind the operands."""
    result: ValueRange = values[-1]
    return result


def _call(name: str, family: str, template: str, **fields: Any) -> Operator:
    operands = (also(floating, nonempty),)
    return Operator(name, family, template, operands, _result, calls=1, evaluate=_first, **fields)


def _call_with_two(name: str, family: str, template: str, **fields: Any) -> Operator:
    operands: tuple[Wanted, ...] = (also(floating, nonempty), also(floating, same_dtype, same_shape))
    return Operator(name, family, template, operands, _result, calls=1, passes=2, evaluate=_first_of_two, **fields)


def _either(condition: ProgramValue, a: ProgramValue, first: ValueRange, second: ValueRange) -> ValueRange:
    return first.join(second)


def _branch(condition: Any, a: Any, block: Function, other: Function) -> Any:
    return block(a) if condition.flatten()[0] > 0 else other(a)


def _count(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"count": 2 + picks.below(2)}


def _loop(a: Any, block: Function, count: int) -> Any:
    for _ in range(count):
        a = block(a)
    return a


_CHECKPOINT = "torch.utils.checkpoint.checkpoint({block}, {operands}, use_reentrant=False)"
_WRAPPER = "torch.compiler.nested_compile_region"

_CALLS = (
    _call("call", "call", "{block}({a})", calls_rng="always"),
    _call_with_two("call_with_two", "call", "{block}({a}, {b})", calls_rng="always"),
    _call("checkpoint", "checkpoint", _CHECKPOINT.replace("{operands}", "{a}"), calls_rng="trained"),
    _call_with_two(
        "checkpoint_of_two", "checkpoint", _CHECKPOINT.replace("{operands}", "{a}, {b}"), calls_rng="trained"
    ),
    _call(
        "checkpoint_reentrant",
        "checkpoint",
        _CHECKPOINT.replace("{operands}", "{a}").replace("False", "True"),
        calls_rng="trained",
    ),
    _call("nested", "nested", "{block}({a})", block_wrapper=_WRAPPER),
    _call_with_two("nested_of_two", "nested", "{block}({a}, {b})", block_wrapper=_WRAPPER),
    Operator(
        "cond",
        "cond",
        "torch.cond({a}.flatten()[0] > 0, {block}, {other}, ({b},))",
        (also(exact, nonempty), also(floating, nonempty)),
        _either,
        calls=2,
        evaluate=_branch,
    ),
    Operator(
        "while_loop",
        "loop",
        "repeated({block}, {count}, {a})",
        (also(floating, nonempty, as_made),),
        _result,
        _count,
        calls=1,
        evaluate=_loop,
        sealed=True,
        needs=("repeated",),
    ),
)


def _custom(name: str, template: str, value_range: Any, *operands: Wanted, needs: str, **fields: Any) -> Operator:
    return Operator(name, "custom", template, operands, value_range, needs=(needs,), **fields)


_TARGET = also(floating, writable, without_gradient)
_OTHER = also(floating, same_dtype, same_shape)

_CUSTOM = (
    _custom("custom_scale", "scale({a}, 0.5)", lambda a: a.value_range.scaled(0.5), floating, needs="scale"),
    _custom(
        "custom_pair",
        "sum_and_difference({a}, {b})",
        lambda a, b: (total(a.value_range, b.value_range), total(a.value_range, b.value_range.scaled(-1.0))),
        floating,
        _OTHER,
        needs="sum_and_difference",
        results=2,
    ),
    _custom(
        "custom_mutating",
        "accumulate({a}, {b})",
        lambda a, b: total(a.value_range, b.value_range),
        _TARGET,
        also(_OTHER, without_gradient, apart),
        needs="accumulate",
        results=0,
        writes=(0,),
    ),
    _custom(
        "custom_mutating_with_result",
        "scale_in_place({a}, 2.0)",
        lambda a: (a.value_range, a.value_range.scaled(2.0)),
        _TARGET,
        needs="scale_in_place",
        writes=(0,),
    ),
    _custom(
        "function_doubled_gradient",
        "DoubledGradient.apply({a})",
        lambda a: between(-1, 1, a.value_range),
        also(floating, no_larger_than(32)),
        needs="DoubledGradient",
    ),
    _custom(
        "function_of_two",
        "ScaledProduct.apply({a}, {b}, 0.5)",
        lambda a, b: product(a.value_range, b.value_range).scaled(0.5),
        floating,
        also(_OTHER, another),
        needs="ScaledProduct",
    ),
    _custom(
        "function_straight_through",
        "StraightThrough.apply({a})",
        lambda a: integers(a.value_range.low - 1, a.value_range.high + 1),
        also(floating, lambda value, *before: value.value_range.exact),
        needs="StraightThrough",
    ),
)

_STATEMENTS = (Operator("nothing", "statement", "pass", (), lambda: (), results=0),)

OPERATORS = (*_CUSTOM, *_CALLS, *_STATEMENTS)
