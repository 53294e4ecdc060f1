"""Loops over a program's blocks, and derivatives of them: ``scan``, ``map``, ``associative_scan``, ``torch.func``.

A derivative may be anything, so ``tanh`` keeps it between -1 and 1. Blocks with a kink where a value may be are not
differentiated, whether or not the program is to train.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_regional.fuzz.model.value_range import ValueRange, between, integers
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    ProgramValue,
    Wanted,
    also,
    as_made,
    floating,
    nonempty,
    ranked,
    same_dtype,
    same_shape,
)

Function = Callable[..., Any]


def _result(*values: Any, **parameters: Any) -> ValueRange:
    """Return the range of the block's result, which stands behind the operands."""
    result: ValueRange = values[-1]
    return result


# Loops. Building takes a plain loop in their place: they compile in eager too.

_ROWS = also(floating, nonempty, ranked(1), as_made)


def _loop(name: str, template: str, value_range: Any, evaluate: Function, *operands: Wanted, **fields: Any) -> Operator:
    return Operator(name, "loop", template, operands, value_range, evaluate=evaluate, sealed=True, **fields)


def _scan(a: Any, block: Function, reverse: bool) -> Any:
    import torch

    carry, made = torch.zeros_like(a[0]), []
    for row in reversed(a.unbind()) if reverse else a.unbind():
        carry = carry * 0.5 + block(row)
        made.append(carry * 2)
    return torch.stack(made[::-1] if reverse else made)


def _scanned(a: ProgramValue, block: ValueRange, reverse: bool) -> ValueRange:
    return between(-4 * block.size, 4 * block.size, block)


def _counted(a: Any, block: Function, count: int) -> Any:
    import torch

    for _ in range(count):
        a = block(a)
    return a, torch.tensor(1 + 2 * count)


def _recurrence(a: Any, b: Any) -> Any:
    import torch

    made = [b[0]]
    for factor, row in zip(torch.tanh(a)[1:], b[1:], strict=True):
        made.append(made[-1] * factor + row)
    return torch.stack(made)


def _direction(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"reverse": picks.flag()}


def _count(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"count": 2 + picks.below(2)}


_LOOPS = (
    _loop(
        "scan",
        "scanned({block}, {a}, {reverse})",
        _scanned,
        _scan,
        _ROWS,
        choose=_direction,
        calls=1,
        needs=("scanned",),
    ),
    _loop(
        "map_rows",
        "torch._higher_order_ops.map({block}, {a})",
        _result,
        lambda a, block: block(a),
        _ROWS,
        calls=1,
    ),
    _loop(
        "running_sum",
        'torch._higher_order_ops.associative_scan(lambda x, y: x + y, {a}, 0, combine_mode="generic")',
        lambda a: a.value_range.summed(a.shape[0]),
        lambda a: a.cumsum(0),
        _ROWS,
    ),
    _loop(
        "recurrence",
        "recurrence({a}, {b})",
        lambda a, b: between(-b.value_range.size * a.shape[0], b.value_range.size * a.shape[0], b.value_range),
        _recurrence,
        _ROWS,
        also(_ROWS, same_dtype, same_shape),
        needs=("recurrence",),
    ),
    _loop(
        "while_loop_counting",
        "repeated_counting({block}, {count}, {a})",
        lambda a, block, count: (block, integers(1, 1 + 2 * count)),
        _counted,
        also(floating, nonempty, as_made),
        choose=_count,
        calls=1,
        results=2,
        needs=("repeated_counting",),
    ),
    _loop(
        "while_loop_never",
        "never_repeated({block}, {a})",
        lambda a, block: a.value_range,
        lambda a, block: a * 1,
        also(floating, nonempty, as_made),
        calls=1,
        needs=("never_repeated",),
    ),
)


# Derivatives


def _squashed(*values: Any, **parameters: Any) -> ValueRange:
    return ValueRange(-1.0, 1.0)


def _derivative(name: str, call: str, *conditions: Wanted, **fields: Any) -> Operator:
    wanted = also(floating, nonempty, *conditions)
    template = f"torch.tanh({call})" if not fields else call
    return Operator(name, "transform", template, (wanted,), _squashed, calls=1, differentiates=True, **fields)


def _few(most: int) -> Wanted:
    return lambda value, *before: value.count <= most


def _row_of(value: ProgramValue, a: ProgramValue) -> bool:
    return value.dtype == a.dtype and value.shape == a.shape[1:]


_GRADIENT = "torch.func.grad(lambda x: {block}(x).sum())"

_TRANSFORMS = (
    Operator("vmap", "transform", "torch.func.vmap({block})({a})", (_ROWS,), _result, calls=1),
    Operator(
        "vmap_last", "transform", "torch.func.vmap({block}, in_dims=-1, out_dims=-1)({a})", (_ROWS,), _result, calls=1
    ),
    Operator(
        "vmap_of_two",
        "transform",
        "torch.func.vmap({block}, in_dims=(0, None))({a}, {b})",
        (also(floating, nonempty, ranked(2)), also(floating, _row_of)),
        _result,
        calls=1,
        passes=2,
    ),
    _derivative("jvp", "torch.func.jvp({block}, ({a},), (torch.ones_like({a}),))[1]"),
    _derivative("vjp", "torch.func.vjp({block}, {a})[1](torch.ones_like({a}))[0]"),
    _derivative("gradient", _GRADIENT + "({a})"),
    _derivative("gradient_of_rows", f"torch.func.vmap({_GRADIENT})({{a}})", ranked(1)),
    _derivative("jacrev", "torch.func.jacrev({block})({a}.flatten()).diagonal()", _few(16)),
    _derivative("jacfwd", "torch.func.jacfwd({block})({a}.flatten()).diagonal()", _few(16)),
    _derivative("hessian", "torch.func.hessian(lambda x: {block}(x).sum())({a}.flatten()).diagonal()", _few(8)),
    _derivative("forward_over_reverse", f"torch.func.jvp({_GRADIENT}, ({{a}},), (torch.ones_like({{a}}),))[1]"),
    _derivative("forward_mode", "tangent({block}, {a})", needs=("tangent",)),
)

OPERATORS = (*_LOOPS, *_TRANSFORMS)
