"""Products of matrices."""

from __future__ import annotations

from typing import Any

from pytest_regional.fuzz.facts import Facts, product, total
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Value,
    Wanted,
    also,
    floating,
    matrix_of,
    nonempty,
    ranked,
    same_dtype,
)


def _summed(a: Value, b: Value) -> Facts:
    return product(a.facts, b.facts).summed(a.shape[-1])


def _family(name: str, template: str, operands: tuple[Wanted, ...], facts: Any = _summed) -> Operator:
    return Operator(name, "matmul", template, operands, facts, autocast=True)


def _of(rank: int) -> Wanted:
    return also(floating, nonempty, ranked(rank, rank))


def _batched(value: Value, *before: Value) -> bool:
    first = before[0].shape
    return value.shape[:-2] == first[:-2] and value.shape[-2] == first[-1]


def _rows_of(value: Value, *before: Value) -> bool:
    return value.shape[-1] == before[0].shape[-1]


def _vector_of(value: Value, *before: Value) -> bool:
    return value.shape == before[0].shape[-1:]


def _third_fits(value: Value, a: Value, b: Value) -> bool:
    return value.dtype == a.dtype and value.shape in ((b.shape[-1],), (a.shape[0], b.shape[-1]), (1, b.shape[-1]))


def _bias_of_rows(value: Value, a: Value, b: Value) -> bool:
    return value.dtype == a.dtype and value.shape == b.shape[:1]


def _batched_third(value: Value, a: Value, b: Value) -> bool:
    return value.dtype == a.dtype and value.rank == 3 and value.shape == (*a.shape[:2], b.shape[2])


def _added(a: Value, b: Value, c: Value) -> Facts:
    return total(_summed(a, b), c.facts)


def _attended(a: Value, b: Value, c: Value) -> Facts:
    return Facts(c.facts.low, c.facts.high, finite=c.facts.finite)


_ATTENTION = (_of(4), also(_of(4), same_dtype, lambda value, a, *others: value.shape == a.shape))

OPERATORS = (
    _family("mm", "torch.mm({a}, {b})", (_of(2), also(_of(2), same_dtype, matrix_of))),
    _family("matmul", "{a} @ {b}", (also(floating, nonempty, ranked(1)), also(_of(2), same_dtype, matrix_of))),
    _family("bmm", "torch.bmm({a}, {b})", (_of(3), also(_of(3), same_dtype, _batched))),
    _family("mv", "torch.mv({a}, {b})", (_of(2), also(_of(1), same_dtype, _vector_of))),
    _family("dot", "torch.dot({a}, {b})", (_of(1), also(_of(1), same_dtype, _vector_of))),
    _family(
        "mm_transposed", "{a} @ {b}.t()", (also(floating, nonempty, ranked(2)), also(_of(2), same_dtype, _rows_of))
    ),
    _family(
        "linear",
        "torch.nn.functional.linear({a}, {b}, {c})",
        (also(floating, nonempty, ranked(2)), also(_of(2), same_dtype, _rows_of), also(floating, _bias_of_rows)),
        _added,
    ),
    _family(
        "addmm",
        "torch.addmm({c}, {a}, {b})",
        (_of(2), also(_of(2), same_dtype, matrix_of), also(floating, _third_fits)),
        _added,
    ),
    _family(
        "baddbmm",
        "torch.baddbmm({c}, {a}, {b})",
        (_of(3), also(_of(3), same_dtype, _batched), also(floating, _batched_third)),
        _added,
    ),
    Operator(
        "outer",
        "matmul",
        "torch.outer({a}, {b})",
        (_of(1), also(_of(1), same_dtype)),
        lambda a, b: product(a.facts, b.facts),
    ),
    Operator(
        "einsum",
        "matmul",
        'torch.einsum("bij,jk->bki", {a}, {b})',
        (_of(3), also(_of(2), same_dtype, matrix_of)),
        _summed,
    ),
    Operator(
        "tensordot",
        "matmul",
        "torch.tensordot({a}, {b}, 1)",
        (also(floating, nonempty, ranked(2)), also(_of(2), same_dtype, matrix_of)),
        _summed,
    ),
    Operator(
        "attention",
        "matmul",
        "torch.nn.functional.scaled_dot_product_attention({a}, {b}, {c})",
        (*_ATTENTION, _ATTENTION[1]),
        _attended,
    ),
    Operator(
        "attention_causal",
        "matmul",
        "torch.nn.functional.scaled_dot_product_attention({a}, {b}, {c}, is_causal=True)",
        (*_ATTENTION, _ATTENTION[1]),
        _attended,
    ),
    Operator(
        "kron",
        "matmul",
        "torch.kron({a}, {b})",
        (_of(1), also(_of(1), same_dtype)),
        lambda a, b: product(a.facts, b.facts),
    ),
)
