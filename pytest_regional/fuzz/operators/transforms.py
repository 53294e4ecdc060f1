"""Loops over blocks and derivatives of them; pooling, losses, linear algebra, complex numbers; patterns by hand.

A derivative may be anything, so ``tanh`` keeps it between -1 and 1. Blocks with a kink where a value may be are not
differentiated, whether or not the program is to train.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.arguments import ValueRange, between, integers, product
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    ProgramValue,
    Wanted,
    also,
    anything,
    as_made,
    at_least,
    either,
    exact,
    floating,
    no_larger_than,
    nonempty,
    numeric,
    ranked,
    real,
    same_dtype,
    same_shape,
    without_gradient,
)


def _of_precision(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.dtype in ("float32", "float64")


# Pooling and losses


def _pooled(a: ProgramValue) -> ValueRange:
    return between(0.0, 2 * a.value_range.size, a.value_range)


def _large_enough(value: ProgramValue, *before: ProgramValue) -> bool:
    return min(value.shape[1:]) >= 2


_POOLING = tuple(
    Operator(
        f"lp_pool{rank}d",
        "convolution",
        f"torch.nn.functional.lp_pool{rank}d({{a}}, 2.0, 2)",
        # The derivative of a root is infinite at 0.
        (also(floating, nonempty, ranked(rank + 1, rank + 2), _large_enough, at_least(0.1)),),
        _pooled,
    )
    for rank in (1, 2)
)


def _margin(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"margin": picks.one_of((1.0, 0.5))}


def _hinge(a: ProgramValue, b: ProgramValue, margin: float) -> ValueRange:
    return between(-a.value_range.size, 2 * a.value_range.size + 2 * margin, a.value_range)


_LOSSES = (
    Operator(
        "hinge_embedding_loss",
        "norm",
        "torch.nn.functional.hinge_embedding_loss({a}, {b}, {margin})",
        (also(floating, exact, nonempty), also(floating, exact, same_dtype, same_shape, without_gradient)),
        _hinge,
        _margin,
    ),
)


# Bags of rows


def _bag_mode(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"mode": picks.one_of(("sum", "mean"))}


def _index_of_bags(value: ProgramValue, a: ProgramValue) -> bool:
    held = value.value_range
    inside = held.low >= 0 and held.high < a.shape[0]
    return value.dtype == "int64" and not value.unbacked and value.rank == 2 and value.count > 0 and inside


def _bagged(a: ProgramValue, b: ProgramValue, mode: str) -> ValueRange:
    summed = a.value_range.summed(b.shape[1])
    return summed if mode == "sum" else replace(summed, low=a.value_range.low, high=a.value_range.high, unit=None)


_BAGS = (
    Operator(
        "embedding_bag",
        "index",
        "torch.nn.functional.embedding_bag({b}, {a}, mode={mode})",
        (also(floating, nonempty, ranked(2, 2), _of_precision), _index_of_bags),
        _bagged,
        _bag_mode,
    ),
)


# Linear algebra


def _square(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.rank >= 2 and value.shape[-1] == value.shape[-2] <= 8


#: Positive definite, all eigenvalues from 2 upward.
_DEFINITE = "({a} @ {a}.mT + 2 * torch.eye({a}.shape[-1], dtype={a}.dtype, device={a}.device))"
_MATRIX = also(floating, nonempty, ranked(2, 3), _of_precision, _square, no_larger_than(3))


def _inverted(a: ProgramValue) -> ValueRange:
    return between(-0.5, 0.5, a.value_range)


def _largest(a: ProgramValue) -> float:
    return 2 + a.shape[-1] * a.value_range.size**2


def _rooted(a: ProgramValue) -> ValueRange:
    return between(-math.sqrt(_largest(a)), math.sqrt(_largest(a)), a.value_range)


def _solved(a: ProgramValue, b: ProgramValue) -> ValueRange:
    reach = b.value_range.size * math.sqrt(a.shape[-1]) / 2
    return between(-reach, reach, a.value_range, b.value_range)


def _log_determinant(a: ProgramValue) -> ValueRange:
    return between(0.0, a.shape[-1] * math.log(a.shape[-1] * _largest(a)), a.value_range)


def _algebra(name: str, template: str, value_range: Any, *others: Wanted) -> Operator:
    return Operator(name, "matmul", template, (_MATRIX, *others), value_range)


_ALGEBRA = (
    _algebra("inverse", f"torch.linalg.inv({_DEFINITE})", _inverted),
    _algebra("pseudoinverse", f"torch.linalg.pinv({_DEFINITE})", _inverted),
    _algebra("cholesky", f"torch.linalg.cholesky({_DEFINITE})", _rooted),
    _algebra(
        "solve",
        f"torch.linalg.solve({_DEFINITE}, {{b}})",
        _solved,
        also(floating, same_dtype, same_shape),
    ),
    _algebra("log_determinant", f"torch.linalg.slogdet({_DEFINITE})[1]", _log_determinant),
)


# Statistics of large numbers


def _functional_dimension(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank), "keepdim": picks.flag()}


_STATISTICS = (
    Operator(
        "deviation_of_large",
        "reduction",
        "torch.std({a}, {dim}, correction=0, keepdim={keepdim})",
        (
            also(
                numeric,
                ranked(1),
                nonempty,
                _of_precision,
                at_least(1e15),
                without_gradient,
                lambda value, *before: min(value.shape) >= 2,
            ),
        ),
        lambda a, **parameters: between(0.0, a.value_range.high, a.value_range),
        _functional_dimension,
    ),
)


# Complex numbers


def _imaginary(value: ProgramValue, a: ProgramValue) -> bool:
    return floating(value) and _of_precision(value) and value.dtype == a.dtype and value.shape == a.shape


def _joined(a: ProgramValue, b: ProgramValue) -> ValueRange:
    reach = max(a.value_range.size, b.value_range.size)
    return between(-reach, reach, a.value_range, b.value_range)


def _multiplied(a: ProgramValue, b: ProgramValue) -> ValueRange:
    reach = 2 * max(a.value_range.size, b.value_range.size) ** 2
    return between(-reach, reach, a.value_range, b.value_range)


_VIEWED = "torch.view_as_complex(torch.stack(({a}, {b}), -1))"

_COMPLEX = tuple(
    Operator(name, "pointwise", template, (floating, _imaginary), value_range)
    for name, template, value_range in (
        ("complex_view", f"torch.view_as_real({_VIEWED})", _joined),
        ("complex_view_conjugate", f"torch.view_as_real({_VIEWED}.conj() * {_VIEWED})", _multiplied),
        ("complex_view_imaginary", f"{_VIEWED}.mul(2.0).imag.clone()", lambda a, b: b.value_range.scaled(2.0)),
    )
)

_FUNCTIONAL_ROWS = (*_POOLING, *_LOSSES, *_BAGS, *_ALGEBRA, *_STATISTICS, *_COMPLEX)


def _dimension(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank)}


def _one_of_them(a: ProgramValue, dim: int) -> ValueRange:
    return ValueRange(a.value_range.low, a.value_range.high, a.value_range.exact)


def _at_position(name: str, position: str) -> Operator:
    """Return an operator that reads the element at the position of an extreme."""
    wanted = also(floating, ranked(1), nonempty, without_gradient)
    return Operator(name, "sort", f"{{a}}.gather({{dim}}, {position})", (wanted,), _one_of_them, _dimension)


def _batched(value: ProgramValue, a: ProgramValue) -> bool:
    return value.rank == a.rank and value.shape[:-2] == a.shape[:-2] and value.shape[-2] == a.shape[-1]


def _normalized(a: ProgramValue) -> ValueRange:
    return a.value_range.scaled(1 / math.sqrt(1.5))


def _instance(a: ProgramValue) -> ValueRange:
    reach = math.sqrt(math.prod(a.shape[2:]))
    return ValueRange(-reach, reach)


def _repeated(a: ProgramValue) -> ValueRange:
    return a.value_range.repeated()


def _unit(a: ProgramValue, dim: int) -> ValueRange:
    return ValueRange(-1.0, 1.0)


def _products(a: ProgramValue, b: ProgramValue, **parameters: Any) -> ValueRange:
    return product(a.value_range, b.value_range).summed(a.shape[-1])


_PATTERNS_ROWS = (
    Operator(
        "matmul_batched",
        "matmul",
        "{a} @ {b}",
        (also(floating, nonempty, ranked(3, 4)), also(floating, same_dtype, _batched)),
        _products,
        autocast=True,
    ),
    _at_position("value_at_argmax", "{a}.argmax({dim}, keepdim=True)"),
    _at_position("value_at_argmin", "{a}.argmin({dim}, keepdim=True)"),
    _at_position("value_at_max_index", "{a}.max({dim}, keepdim=True)[1]"),
    _at_position("values_by_argsort", "{a}.argsort({dim})"),
    Operator(
        "expand_in_front",
        "view",
        "{a}.unsqueeze(0).expand(3, *{a}.shape)",
        (also(anything, ranked(0, 4)),),
        _repeated,
        autocast=True,
    ),
    Operator(
        "batch_norm_in_eval",
        "norm",
        "torch.nn.functional.batch_norm({a}, torch.zeros({a}.shape[1], dtype={a}.dtype, device={a}.device), "
        "torch.ones({a}.shape[1], dtype={a}.dtype, device={a}.device), eps=0.5)",
        (also(floating, ranked(2, 4), nonempty),),
        _normalized,
    ),
    Operator(
        "instance_norm",
        "norm",
        "torch.nn.functional.instance_norm({a}, eps=0.5)",
        (also(floating, ranked(3, 4), nonempty, lambda value, *before: math.prod(value.shape[2:]) > 1),),
        _instance,
    ),
    Operator(
        "unit_vectors",
        "norm",
        "torch.nn.functional.normalize({a}, dim={dim}, eps=0.5)",
        # The derivative jumps where a vector is as long as eps.
        (also(floating, ranked(1), nonempty, either(without_gradient, at_least(0.6))),),
        _unit,
        _dimension,
    ),
    Operator(
        "sum_by_hand",
        "reduction",
        "sum({a}.unbind(0))",
        (also(real, ranked(1), nonempty, lambda value, *before: value.shape[0] <= 8),),
        lambda a: a.value_range.summed(a.shape[0]),
    ),
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

OPERATORS = (*_LOOPS, *_TRANSFORMS, *_PATTERNS_ROWS, *_FUNCTIONAL_ROWS)
