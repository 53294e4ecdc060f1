"""Operators whose elements are those of other places: views, gathers, pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import z3

from pytest_regional.verify import symbols
from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.operators.calls import (
    Call,
    Place,
    axis_of,
    number_of,
    of_type,
    shape_of,
    source_of,
)
from pytest_regional.verify.symbols import Expression, constant


def _elsewhere(places: Callable[[Call, Place], Sequence[Expression]]) -> Callable[[Call], Expression]:
    """Return the meaning of a view: an element of its argument, at a place that ``places`` tells."""
    return lambda call: call.region.element(source_of(call), tuple(places(call, shape_of(source_of(call)))))


def _permuted(call: Call, shape: Place) -> list[Expression]:
    order = [axis_of(number, len(shape)) for number in call.arguments[1]]
    found = list(call.place)
    for at, axis in zip(call.place, order, strict=True):
        found[axis] = at
    return found


def _transposed(call: Call, shape: Place) -> list[Expression]:
    found = list(call.place)
    one, other = (axis_of(call.given(n, "", d), len(shape)) for n, d in ((1, 0), (2, 1))) if shape else (0, 0)
    if len(shape) > 1:
        found[one], found[other] = found[other], found[one]
    return found


def _unsqueezed(call: Call, shape: Place) -> list[Expression]:
    found = list(call.place)
    del found[axis_of(call.arguments[1], len(call.place))]
    return found


def _squeezed(call: Call, shape: Place) -> list[Expression]:
    chosen = call.given(1, "dim", range(len(shape)))
    axes = {axis_of(n, len(shape)) for n in ([chosen] if isinstance(chosen, int) else chosen)}
    kept = iter(call.place)
    gone = [axis in axes and constant(size) == 1 for axis, size in enumerate(shape)]
    return [z3.IntVal(0) if is_gone else next(kept) for is_gone in gone]


def _expanded(call: Call, shape: Place) -> list[Expression]:
    kept = call.place[len(call.place) - len(shape) :]
    return [z3.IntVal(0) if constant(size) == 1 else at for size, at in zip(shape, kept, strict=True)]


def _sliced(call: Call, shape: Place) -> list[Expression]:
    axis, start, _, step = _slice(call, shape, 1)
    found = list(call.place)
    found[axis] = start + found[axis] * step
    return found


def _slice(call: Call, shape: Place, first: int) -> tuple[int, Expression, Expression, int]:
    """Return the axis of a slice, where it starts and ends, and its step."""
    axis = axis_of(call.given(first, "dim", 0), len(shape))
    size = shape[axis]
    start = _limited(call.given(first + 1, "start"), size, z3.IntVal(0))
    return axis, start, _limited(call.given(first + 2, "end"), size, size), call.given(first + 3, "step", 1)


def _limited(value: Any, size: Expression, otherwise: Expression) -> Expression:
    """Return an end of a slice between 0 and the size of the axis."""
    if value is None or (isinstance(value, int) and value >= (1 << 63) - 1):
        return otherwise
    given = number_of(value)
    from_end = z3.If(given < 0, given + size, given)
    return z3.simplify(z3.If(from_end < 0, 0, z3.If(from_end > size, size, from_end)))


def _selected(call: Call, shape: Place) -> list[Expression]:
    axis = axis_of(call.arguments[1], len(shape))
    number = number_of(call.arguments[2])
    found = list(call.place)
    found.insert(axis, z3.simplify(z3.If(number < 0, number + shape[axis], number)))
    return found


def _flipped(call: Call, shape: Place) -> list[Expression]:
    axes = {axis_of(number, len(shape)) for number in call.arguments[1]}
    pairs = enumerate(zip(shape, call.place, strict=True))
    return [size - 1 - at if axis in axes else at for axis, (size, at) in pairs]


def _restrided(call: Call, shape: Place) -> list[Expression]:
    """Return the place of an element of ``as_strided``, whose argument has to be contiguous."""
    source = source_of(call)
    if not source.meta["val"].is_contiguous() or source.op == "placeholder":
        raise NotVerifiableError("aten::as_strided of a tensor that is not contiguous")
    terms = [at * number_of(stride) for at, stride in zip(call.place, call.arguments[2], strict=True)]
    return digits(z3.simplify(z3.Sum([number_of(call.given(3, "storage_offset") or 0), *terms])), shape)


def _diagonal(call: Call, shape: Place) -> list[Expression]:
    offset = call.given(1, "offset", 0)
    one, other = (axis_of(call.given(n, name, d), len(shape)) for n, name, d in ((2, "dim1", 0), (3, "dim2", 1)))
    *kept, last = call.place
    rest = iter(kept)
    own = {one: last - min(offset, 0), other: last + max(offset, 0)}
    return [own[axis] if axis in own else next(rest) for axis in range(len(shape))]


def _unfolded(call: Call, shape: Place) -> list[Expression]:
    axis, _, step = axis_of(call.arguments[1], len(shape)), call.arguments[2], call.arguments[3]
    found = list(call.place[:-1])
    found[axis] = found[axis] * step + call.place[-1]
    return found


def _reshaped(call: Call, shape: Place) -> list[Expression]:
    return reshaped(call.place, shape_of(call.node), shape)


def reshaped(place: Place, outer: Place, inner: Place) -> list[Expression]:
    """Return where an element lies in a tensor of the sizes ``inner`` that lies at ``place`` with the sizes ``outer``.

    Axes of size 1 are left out, and axes that both have at the front, or at the end, keep their places.
    """
    kept = [(at, size) for at, size in zip(place, outer, strict=True) if constant(size) != 1]
    own = [size for size in inner if constant(size) != 1]
    front = _same(list(zip((size for _, size in kept), own, strict=False)))
    left, right = [size for _, size in kept[front:]], own[front:]
    end = _same(list(zip(reversed(left), reversed(right), strict=False)))
    middle = kept[front : len(kept) - end]
    position = position_of([at for at, _ in middle], [size for _, size in middle])
    found = [at for at, _ in kept[:front]]
    found += digits(position, own[front : len(own) - end])
    found += [at for at, _ in kept[len(kept) - end :]]
    rest = iter(found)
    return [z3.IntVal(0) if constant(size) == 1 else next(rest) for size in inner]


def _same(pairs: Sequence[tuple[Expression, Expression]]) -> int:
    """Return how many pairs are equal, from the first."""
    return next((number for number, pair in enumerate(pairs) if not _is_equal(*pair)), len(pairs))


def _is_equal(one: Expression, other: Expression) -> bool:
    return constant(z3.simplify(one - other, som=True)) == 0


def position_of(place: Sequence[Expression], sizes: Sequence[Expression]) -> Expression:
    """Return how many elements come before one, with the last axis fastest."""
    found: Expression = z3.IntVal(0)
    for at, size in zip(place, sizes, strict=True):
        found = found * size + at
    return z3.simplify(found)


def digits(position: Expression, sizes: Sequence[Expression]) -> list[Expression]:
    """Return the place on axes of these sizes that ``position`` counts, the last axis fastest.

    The quotients are as C divides: of what is not negative they are the same as floored, and kernels have them, too.
    """
    found: list[Expression] = []
    for number, size in enumerate(reversed(sizes)):
        last = number == len(sizes) - 1
        if constant(size) == 1:
            found.append(z3.IntVal(0))
            continue
        found.append(position if last else symbols.truncated_remainder(position, size))
        position = symbols.truncated_quotient(position, size)
    return found[::-1]


def _picked(call: Call) -> Expression:
    """Return the meaning of ``x[i, :, j]``, where tensors of integers are among the indices."""
    source, indices = source_of(call), list(call.arguments[1])
    shape = shape_of(source)
    indices += [None] * (len(shape) - len(indices))
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(index.meta["val"].dtype in (torch.bool, torch.uint8) for _, index in given):
        raise NotVerifiableError("an index that is a mask")
    width = max(index.meta["val"].dim() for _, index in given)
    axes = [axis for axis, _ in given]
    together = axes == list(range(axes[0], axes[-1] + 1))
    first = axes[0] if together else 0
    inner = call.place[first : first + width]
    rest = iter((*call.place[:first], *call.place[first + width :]))
    place = []
    for axis, size in enumerate(shape):
        if indices[axis] is None:
            place.append(next(rest))
        else:
            index = Call(call.region, call.node, inner).operand(indices[axis])
            call.region.assumed.append(z3.And(index >= -size, index < size))
            place.append(_from_end(index, size))
    return call.region.element(source, tuple(place))


def _from_end(index: Expression, size: Expression) -> Expression:
    return z3.If(index < 0, index + size, index)


def _index(call: Call, index: Expression, size: Expression) -> Expression:
    """Return an index that has to lie in its axis, and may not count from the end."""
    call.region.assumed.append(z3.And(index >= 0, index < size))
    return index


def _embedded(call: Call) -> Expression:
    index = call.arguments[1]
    table = source_of(call)
    row = _index(call, call.region.element(index, call.place[:-1]), shape_of(table)[0])
    return call.region.element(table, (row, call.place[-1]))


def _gathered(call: Call) -> Expression:
    source = source_of(call)
    shape = shape_of(source)
    axis = axis_of(call.arguments[1], len(shape))
    place = list(call.place)
    place[axis] = _index(call, call.region.element(call.arguments[2], call.place), shape[axis])
    return call.region.element(source, tuple(place))


def _index_selected(call: Call) -> Expression:
    source = source_of(call)
    shape = shape_of(source)
    axis = axis_of(call.arguments[1], len(shape))
    place = list(call.place)
    place[axis] = _index(call, call.region.element(call.arguments[2], (place[axis],)), shape[axis])
    return call.region.element(source, tuple(place))


def _concatenated(call: Call) -> Expression:
    tensors = [tensor for tensor in call.arguments[0] if tuple(tensor.meta["val"].shape) != (0,)]
    axis = axis_of(call.given(1, "dim", 0), len(call.place))
    start: Expression = z3.IntVal(0)
    pieces = []
    for tensor in tensors:
        place = list(call.place)
        place[axis] = place[axis] - start
        value = of_type(call.region.element(tensor, tuple(place)), call.node.meta["val"].dtype)
        start = z3.simplify(start + shape_of(tensor)[axis])
        pieces.append((call.place[axis] < start, value))
    found = pieces[-1][1]
    for inside, value in reversed(pieces[:-1]):
        found = z3.If(inside, value, found)
    return found


def _padded(call: Call) -> Expression:
    source, widths, value = source_of(call), call.arguments[1], call.given(2, "value", 0)
    shape = shape_of(source)
    place, inside = list(call.place), []
    for number in range(len(widths) // 2):
        axis = len(shape) - 1 - number
        place[axis] = place[axis] - number_of(widths[2 * number])
        inside += [place[axis] >= 0, place[axis] < shape[axis]]
    dtype = call.node.meta["val"].dtype
    return z3.If(z3.And(*inside), call.region.element(source, tuple(place)), of_type(number_of(value), dtype))


def _slice_replaced(call: Call) -> Expression:
    source, other = source_of(call), call.arguments[1]
    axis, start, end, step = _slice(call, shape_of(source), 2)
    at = call.place[axis]
    place = list(call.place)
    place[axis] = at - start if step == 1 else symbols.floored_quotient(at - start, z3.IntVal(step))
    inside = [at >= start, at < end]
    if step != 1:
        inside.append(symbols.floored_remainder(at - start, z3.IntVal(step)) == 0)
    dtype = call.node.meta["val"].dtype
    new = of_type(call.region.element(other, tuple(place)), dtype)
    return z3.If(z3.And(*inside), new, call.region.element(source, call.place))


def _selection_replaced(call: Call) -> Expression:
    source, other = source_of(call), call.arguments[1]
    shape = shape_of(source)
    axis = axis_of(call.arguments[2], len(shape))
    number = z3.simplify(_from_end(number_of(call.arguments[3]), shape[axis]))
    place = list(call.place)
    at = place.pop(axis)
    new = of_type(call.region.element(other, tuple(place)), call.node.meta["val"].dtype)
    return z3.If(at == number, new, call.region.element(source, call.place))


def _piece(sizes: Callable[[Call, Expression], Sequence[Any]]) -> Callable[[Call, int], Expression]:
    def meaning(call: Call, part: int) -> Expression:
        source = source_of(call)
        axis = axis_of(call.given(2, "dim", 0), source.meta["val"].dim())
        lengths = sizes(call, shape_of(source)[axis])
        place = list(call.place)
        place[axis] = place[axis] + sum(map(number_of, lengths[:part]), start=z3.IntVal(0))
        return call.region.element(source, tuple(place))

    return meaning


def _unbound(call: Call, part: int) -> Expression:
    source = source_of(call)
    place = list(call.place)
    place.insert(axis_of(call.given(1, "dim", 0), source.meta["val"].dim()), z3.IntVal(part))
    return call.region.element(source, tuple(place))


def _equal_pieces(length: Any, size: Expression) -> list[Any]:
    total = constant(size)
    if total is None or not isinstance(length, int):
        raise NotVerifiableError("a split into pieces of a symbolic size")
    return [length] * -(-int(total) // max(1, length))


PLACES: dict[str, Callable[[Call], Expression]] = {
    "aten::view": _elsewhere(_reshaped),
    "aten::_unsafe_view": _elsewhere(_reshaped),
    "aten::reshape": _elsewhere(_reshaped),
    "aten::permute": _elsewhere(_permuted),
    "aten::transpose": _elsewhere(_transposed),
    "aten::t": _elsewhere(_transposed),
    "aten::unsqueeze": _elsewhere(_unsqueezed),
    "aten::squeeze": _elsewhere(_squeezed),
    "aten::expand": _elsewhere(_expanded),
    "aten::slice": _elsewhere(_sliced),
    "aten::select": _elsewhere(_selected),
    "aten::flip": _elsewhere(_flipped),
    "prims::rev": _elsewhere(_flipped),
    "aten::as_strided": _elsewhere(_restrided),
    "aten::diagonal": _elsewhere(_diagonal),
    "aten::unfold": _elsewhere(_unfolded),
    "aten::index": _picked,
    "aten::_unsafe_index": _picked,
    "aten::embedding": _embedded,
    "aten::gather": _gathered,
    "aten::index_select": _index_selected,
    "aten::cat": _concatenated,
    "aten::constant_pad_nd": _padded,
    "aten::slice_scatter": _slice_replaced,
    "aten::select_scatter": _selection_replaced,
    "aten::copy": lambda call: call.operand(call.arguments[1]),
}
"""What operators mean, by their names."""

PIECES: dict[str, Callable[[Call, int], Expression]] = {
    "aten::split": _piece(lambda call, size: _equal_pieces(call.arguments[1], size)),
    "aten::split_with_sizes": _piece(lambda call, size: call.arguments[1]),
    "aten::unbind": _unbound,
}
"""Those that return several tensors."""
