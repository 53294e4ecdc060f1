"""C++ kernels whose loops are read and not built, and loops that are run in Python."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

from pytest_regional._torch.cpp_loops import (
    EACH,
    IN_A_ROW,
    TRANSPOSED,
    RawAccess,
    RawBody,
    RawKernel,
    RawLoop,
    RawNest,
    observing_loops,
)
from pytest_regional._torch.inductor import kernels_not_built


def kernels_of(function: Callable[..., Any], *inputs: Any, dynamic: bool = False, **options: Any) -> list[RawKernel]:
    found: list[RawKernel] = []
    torch._dynamo.reset()
    compiled = torch.compile(function, dynamic=dynamic, options=options or None)
    with (
        observing_loops(found.append),
        kernels_not_built(),
        torch.no_grad(),
        pytest.raises(TypeError, match="NoneType"),
    ):
        compiled(*inputs)
    return found


def differs(nest: RawNest, sizes: Mapping[str, int]) -> bool:
    """Run all loops with these sizes; say whether the bodies access anything but what one without vectors does."""
    parts = [(False, nest.loops, nest.bodies, nest.sizes)]
    if any(access.after for access in nest.plain):
        parts.append((True, nest.loops[: nest.kept], nest.after, nest.sizes[: nest.kept]))
    for after, loops, bodies, extents in parts:
        plain = [access for access in nest.plain if access.after == after]
        variables = [loop.variable for loop in loops]
        meant: Counter[Any] = Counter()
        for point in itertools.product(*(range(number(size, sizes)) for size in extents)):
            values = dict(zip(variables, point, strict=True))
            meant.update((n, point, number(access.at, sizes, values)) for n, access in enumerate(plain))
            meant[point] += 1
        done: Counter[Any] = Counter()
        for body in bodies:
            accesses = [access for access in body.accesses if access.after == after]
            for point, values, lane, other in runs(loops, body, sizes):
                done.update((n, point, element(a, body, sizes, values, lane, other)) for n, a in enumerate(accesses))
                done[point] += 1
        if meant != done:
            return True
    return False


def runs(
    loops: tuple[RawLoop, ...], body: RawBody, sizes: Mapping[str, int]
) -> Iterator[tuple[tuple[int, ...], dict[Any, int], int, int]]:
    """Yield for each lane that is run its index, the values of the loops' variables, and its numbers."""
    variables = [loop.variable for loop in loops]
    lanes = [(v, count) for v, count in body.lanes if v in variables]
    ranges = [range(*(number(n, sizes) for n in (loop.offset, loop.size, loop.step))) for loop in loops]
    for start in itertools.product(*ranges):
        values = dict(zip(variables, start, strict=True))
        if any(
            not number(low, sizes) <= values[v] < number(high, sizes) for v, low, high in body.active if v in values
        ):
            continue
        inner = [
            [(v, n) for n in range(number(low, sizes), number(high, sizes))]
            for v, low, high in body.inner
            if v in values
        ]
        for pairs in itertools.product(*inner):
            at = values | dict(pairs)
            for numbers in itertools.product(*(range(number(count, sizes)) for _, count in lanes)):
                moved = dict(at)
                for (v, _), n in zip(lanes, numbers, strict=True):
                    moved[v] += n
                by_variable = {v: n for (v, _), n in zip(lanes, numbers, strict=True)}
                both = [by_variable.get(v, 0) for v, _ in body.lanes]
                yield tuple(moved[v] for v in variables), at, *[*both, 0, 0][:2]


def element(
    access: RawAccess, body: RawBody, sizes: Mapping[str, int], values: Mapping[Any, int], lane: int, other: int
) -> int:
    at = dict(values)
    if access.lanes == EACH:
        at[body.lanes[0][0]] += lane
    if body.within is not None:
        at[body.within] = other
    first = number(access.at, sizes, at)
    if access.lanes == IN_A_ROW:
        return first + lane
    return first + lane * number(access.stride, sizes) + other if access.lanes == TRANSPOSED else first


def number(expression: Any, sizes: Mapping[str, int], values: Mapping[Any, int] | None = None) -> int:
    """Compute an expression as Python, which its text is, and not as sympy."""
    named = {str(variable): value for variable, value in (values or {}).items()} | dict(sizes)
    return int(eval(_compiled(str(expression)), {"ModularIndexing": lambda x, d, m: x // d % m}, named))


@functools.cache
def _compiled(text: str) -> Any:
    return compile(text, text, "eval")
