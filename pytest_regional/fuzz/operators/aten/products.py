"""Products of matrices and vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pytest_regional.fuzz.model.value_range import ValueRange, between, integers, product, total
from pytest_regional.fuzz.operators.aten.ranges import Ranges, always
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    ProgramValue,
    Wanted,
    also,
    floating,
    integer,
    matrix_of,
    nonempty,
    numeric,
    ranked,
    real,
    same_dtype,
    same_shape,
    without_gradient,
)
from pytest_regional.fuzz.operators.schemas import derived


def products() -> Iterator[tuple[Operator, ...]]:
    """Yield products of matrices with a scaled summand, of integers, and in place."""
    matrix = also(numeric, nonempty, ranked(2, 2))
    vector = also(numeric, nonempty, ranked(1, 1))
    batch = also(numeric, nonempty, ranked(3, 3))

    def added(count: Callable[..., int]) -> Ranges:
        def value_range(
            a: ProgramValue, b: ProgramValue, c: ProgramValue, alpha: float = 1, beta: float = 1
        ) -> ValueRange:
            summed = product(a.value_range, b.value_range).summed(count(a, b)).scaled(alpha)
            # Of what is scaled by zero nothing comes through, not even NaN.
            return replace(summed, zeros=False) if beta == 0 else total(summed, c.value_range.scaled(beta))

        return value_range

    def third(shape: Callable[..., tuple[int, ...]]) -> Wanted:
        def fits(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
            wanted = shape(a, b)
            pairs = zip(reversed(value.shape), reversed(wanted), strict=False)
            return (
                real(value)
                and value.dtype == a.dtype
                and value.rank <= len(wanted)
                and all(x in (y, 1) for x, y in pairs)
            )

        return fits

    inner = lambda a, b: a.shape[-1]  # noqa: E731
    whole = {rank: also(integer, nonempty, ranked(rank, rank)) for rank in (1, 2, 3)}

    def multiplied(a: ProgramValue, b: ProgramValue) -> ValueRange:
        return product(a.value_range, b.value_range).summed(a.shape[-1])

    # Of integers; those of floats stand where a user would write them.
    yield derived("mm", "matmul", {"self": whole[2], "mat2": also(whole[2], same_dtype, matrix_of)}, multiplied)
    yield derived(
        "bmm",
        "matmul",
        {
            "self": whole[3],
            "mat2": also(whole[3], same_dtype, lambda v, a: v.shape[0] == a.shape[0] and v.shape[1] == a.shape[2]),
        },
        multiplied,
    )
    yield derived(
        "mv",
        "matmul",
        {"self": whole[2], "vec": also(whole[1], same_dtype, lambda v, a: v.shape == a.shape[1:])},
        multiplied,
    )
    yield derived("dot", "matmul", {"self": whole[1], "tensor": also(whole[1], same_dtype, same_shape)}, multiplied)
    of_rows = also(matrix, same_dtype, matrix_of)
    yield derived(
        "addmm",
        "matmul",
        {"mat1": matrix, "mat2": of_rows, "self": third(lambda a, b: (a.shape[0], b.shape[1]))},
        added(inner),
        in_place=True,
    )
    yield derived(
        "addmv",
        "matmul",
        {
            "mat": matrix,
            "vec": also(vector, same_dtype, lambda v, a: v.shape == a.shape[1:]),
            "self": third(lambda a, b: (a.shape[0],)),
        },
        added(inner),
        in_place=True,
    )
    batched = also(batch, same_dtype, lambda v, a: v.shape[0] == a.shape[0] and v.shape[1] == a.shape[2])
    yield derived(
        "baddbmm",
        "matmul",
        {"batch1": batch, "batch2": batched, "self": third(lambda a, b: (*a.shape[:2], b.shape[2]))},
        added(inner),
        in_place=True,
    )
    yield derived(
        "addbmm",
        "matmul",
        {"batch1": batch, "batch2": batched, "self": third(lambda a, b: (a.shape[1], b.shape[2]))},
        added(lambda a, b: a.shape[0] * a.shape[2]),
        in_place=True,
    )
    yield derived(
        "addr",
        "matmul",
        {"vec1": vector, "vec2": also(vector, same_dtype), "self": third(lambda a, b: (a.count, b.count))},
        added(lambda a, b: 1),
        in_place=True,
    )
    three = also(numeric, lambda v, *b: 3 in v.shape)

    def dims_of_three(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
        return [dim for dim, size in enumerate(values[0].shape) if size == 3]

    yield derived(
        "linalg_cross",
        "matmul",
        {"self": three, "other": also(numeric, same_dtype, same_shape)},
        lambda a, b, **p: replace(
            product(a.value_range, b.value_range).summed(2),
            low=-2 * a.value_range.size * b.value_range.size,
            high=2 * a.value_range.size * b.value_range.size,
        ),
        given={"dim": dims_of_three},
    )
    yield derived(
        "vdot",
        "matmul",
        {"self": vector, "other": also(vector, same_dtype, same_shape)},
        lambda a, b: product(a.value_range, b.value_range).summed(a.count),
    )
    yield derived(
        "inner",
        "matmul",
        {
            "self": also(numeric, nonempty, ranked(1)),
            "other": also(numeric, nonempty, ranked(1), same_dtype, lambda v, a: v.shape[-1] == a.shape[-1]),
        },
        lambda a, b: product(a.value_range, b.value_range).summed(a.shape[-1]),
    )
    yield derived(
        "cdist",
        "matmul",
        {
            "x1": also(floating, nonempty, ranked(2, 2), without_gradient),
            "x2": also(
                floating, nonempty, ranked(2, 2), same_dtype, without_gradient, lambda v, a: v.shape[1] == a.shape[1]
            ),
        },
        lambda a, b, **p: between(0, 4 * (a.value_range.size + b.value_range.size) * a.shape[1], a.value_range),
        given={"p": always(1.0, 3.0)},
    )
    yield derived(
        "_int_mm",
        "matmul",
        {
            "self": also(integer, ranked(2, 2), lambda v, *b: v.dtype == "int8" and v.shape[0] > 16),
            "mat2": also(integer, same_dtype, matrix_of),
        },
        lambda a, b: integers(-(2**14) * a.shape[1], 2**14 * a.shape[1]),
    )
