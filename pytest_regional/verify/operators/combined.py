"""Operators that combine elements: sums and the like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import z3

from pytest_regional.verify import arithmetic as reals
from pytest_regional.verify.operators.calls import (
    Call,
    Place,
    axis_of,
    number_of,
    of_type,
    shape_of,
    source_of,
)
from pytest_regional.verify.symbols import (
    ANY,
    EXTREMES,
    LARGEST,
    PRODUCT,
    SMALLEST,
    SUM,
    WHERE_LARGEST,
    WHERE_SMALLEST,
    Expression,
)


def _combined(
    call: Call, kind: str, axes: Any, keep: bool, element: Callable[[Expression], Expression] = lambda value: value
) -> Expression:
    """Return the elements of the first argument along ``axes`` combined, each changed by ``element`` before."""
    source = source_of(call)
    shape = shape_of(source)
    if axes is None or axes == []:
        axes = range(len(shape))
    gone = (
        sorted({axis_of(number, len(shape)) for number in ([axes] if isinstance(axes, int) else axes)}) if shape else []
    )
    kept = iter(call.place)
    outer: list[Expression | None] = []
    for axis in range(len(shape)):
        if axis in gone:
            outer.append(None)
            if keep:
                next(kept)
        else:
            outer.append(next(kept))

    def one(bound: Place) -> Expression:
        rest = iter(bound)
        return element(call.region.element(source, tuple(next(rest) if at is None else at for at in outer)))

    return call.region.reduced(kind, [shape[axis] for axis in gone], one)


def _count(call: Call, axes: Any) -> Expression:
    shape = shape_of(source_of(call))
    if axes is None or axes == []:
        axes = range(len(shape))
    chosen = {axis_of(number, len(shape)) for number in ([axes] if isinstance(axes, int) else axes)} if shape else set()
    found: Expression = z3.IntVal(1)
    for axis in chosen:
        found = found * shape[axis]
    return z3.simplify(found)


def _typed(call: Call) -> Callable[[Expression], Expression]:
    dtype = call.node.meta["val"].dtype
    return lambda value: of_type(value, dtype)


def _reduction(kind: str, convert: bool = False) -> Callable[[Call], Expression]:
    def meaning(call: Call) -> Expression:
        change = _typed(call) if convert else lambda value: value
        return _combined(call, kind, call.given(1, "dim"), call.given(2, "keepdim", False), change)

    return meaning


def _summed_product(call: Call) -> Expression:
    axes = call.given(1, "dim")
    keep = call.given(2, "keepdim", False)
    if axes is not None and not isinstance(axes, int):
        axes = None
    return _combined(call, PRODUCT, axes, keep, _typed(call))


def _mean(call: Call) -> Expression:
    axes = call.given(1, "dim")
    total = _combined(call, SUM, axes, call.given(2, "keepdim", False), _typed(call))
    return reals.divided(total, reals.as_real(_count(call, axes)))


def _variance(call: Call, axes: Any, keep: bool, correction: Any) -> Expression:
    count = _count(call, axes)
    total = _combined(call, SUM, axes, keep)
    mean = reals.divided(total, reals.as_real(count))
    squares = _combined(call, SUM, axes, keep, lambda value: (value - mean) * (value - mean))
    left = reals.as_real(count) - reals.as_real(number_of(correction))
    return reals.divided(squares, z3.simplify(left))


def _corrected(call: Call) -> tuple[Any, bool, Any]:
    """Return the axes of a variance, whether they are kept, and what is subtracted from their size."""
    axes, correction = call.given(1, "dim"), call.node.kwargs.get("correction", 1)
    return axes, bool(call.node.kwargs.get("keepdim", False)), 1 if correction is None else correction


def _var(call: Call) -> Expression:
    return _variance(call, *_corrected(call))


def _var_mean(call: Call, part: int) -> Expression:
    axes, keep, correction = _corrected(call)
    if part == 0:
        return _variance(call, axes, keep, correction)
    return reals.divided(_combined(call, SUM, axes, keep), reals.as_real(_count(call, axes)))


def _any(call: Call) -> Expression:
    return _combined(call, ANY, call.given(1, "dim"), call.given(2, "keepdim", False), reals.as_truth)


def _all(call: Call) -> Expression:
    negated = _combined(
        call, ANY, call.given(1, "dim"), call.given(2, "keepdim", False), lambda v: z3.Not(reals.as_truth(v))
    )
    return z3.Not(negated)


def _extreme(kind: str) -> Callable[[Call, int], Expression]:
    def meaning(call: Call, part: int) -> Expression:
        chosen = EXTREMES[kind] if part == 0 else kind
        return _combined(call, chosen, call.arguments[1], call.given(2, "keepdim", False))

    return meaning


COMBINED: dict[str, Callable[[Call], Expression]] = {
    "aten::sum": _reduction(SUM, convert=True),
    "aten::mean": _mean,
    "aten::prod": _summed_product,
    "aten::amax": _reduction(LARGEST),
    "aten::amin": _reduction(SMALLEST),
    "aten::argmax": _reduction(WHERE_LARGEST),
    "aten::argmin": _reduction(WHERE_SMALLEST),
    "aten::var": _var,
    "aten::any": _any,
    "aten::all": _all,
}
"""What operators mean, by their names."""

SEVERAL_COMBINED: dict[str, Callable[[Call, int], Expression]] = {
    "aten::var_mean": _var_mean,
    "aten::max": _extreme(WHERE_LARGEST),
    "aten::min": _extreme(WHERE_SMALLEST),
}
"""Those that return several tensors."""
