"""What a graph of PyTorch's operators computes: one element of any of its tensors, as an expression of its index.

It says what each operator means by its documentation; how Inductor lowers them is not asked.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import z3

from pytest_regional._torch.operators import schema_of
from pytest_regional._torch.tracing import size_expression
from pytest_regional.verify import arithmetic as reals
from pytest_regional.verify import symbols
from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.sizes import from_sympy
from pytest_regional.verify.symbols import ANY, LARGEST, PRODUCT, SMALLEST, SUM, Expression, Reduction, constant

Place = tuple[Expression, ...]
"""The index of an element: an integer for each axis."""

Held = Callable[[torch.fx.Node, Place], Expression | None]
"""Returns what memory holds of a node's tensor at a place, or None where it is in no memory."""

Operands = tuple[Any, ...]


@dataclass(frozen=True)
class _Call:
    """One operator of the graph, and the element of its result that is asked for."""

    region: Region
    node: torch.fx.Node
    place: Place

    @property
    def arguments(self) -> Operands:
        """Return what the operator is given by position."""
        return tuple(self.node.args)

    def given(self, number: int, name: str, otherwise: Any = None) -> Any:
        """Return an argument by its position or name."""
        if len(self.node.args) > number:
            return self.node.args[number]
        return self.node.kwargs.get(name, otherwise)

    def operand(self, value: Any) -> Expression:
        """Return the element of an argument that belongs to this one, by the rules of broadcasting."""
        if isinstance(value, torch.fx.Node) and is_tensor(value):
            shape = shape_of(value)
            kept = self.place[len(self.place) - len(shape) :]
            place = tuple(z3.IntVal(0) if constant(size) == 1 else at for size, at in zip(shape, kept, strict=True))
            return self.region.element(value, place)
        return number_of(value)

    def size(self, value: Any) -> Expression:
        """Return an integer argument."""
        found = number_of(value)
        if not z3.is_int(found):
            raise NotVerifiableError(f"{self.node.target} with {value} for an integer")
        return found


def is_tensor(node: torch.fx.Node) -> bool:
    """Say whether a node's value is a tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def shape_of(node: torch.fx.Node) -> Place:
    """Return the sizes of a node's tensor."""
    return tuple(map(_size, node.meta["val"].shape))


def strides_of(node: torch.fx.Node) -> Place:
    """Return the strides of a node's tensor, in elements."""
    return tuple(map(_size, node.meta["val"].stride()))


def _size(value: Any) -> Expression:
    return from_sympy(size_expression(value)) if isinstance(value, torch.SymInt) else z3.IntVal(int(value))


def number_of(value: Any) -> Expression:
    """Return a number, or a symbolic size.

    Raises:
        NotVerifiableError: it is neither.
    """
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
    if isinstance(value, bool):
        return z3.BoolVal(value)
    if isinstance(value, (int, torch.SymInt)):
        return _size(value)
    if isinstance(value, float):
        return reals.real(value)
    raise NotVerifiableError(f"a {type(value).__name__} among the operands")


class Region:
    """A graph, whose elements are expressions.

    Attributes:
        held: what memory holds.
        reductions: what the constants were computed from that stand for sums and the like, by name.
        bounds: the size of the axis that a variable of those counts, by its name.
        assumed: what has to hold of indices for the operators to do anything but fail.
    """

    def __init__(self, held: Held) -> None:
        self.held = held
        self.reductions: dict[str, Reduction] = {}
        self.bounds: dict[str, Expression] = {}
        self.assumed: list[Expression] = []
        self._known: dict[tuple[Any, ...], tuple[Place, Expression]] = {}
        self._numbers = itertools.count()

    def element(self, node: torch.fx.Node, place: Place, part: int | None = None) -> Expression:
        """Return an element of a node's tensor.

        Args:
            node: the node.
            place: the index of the element.
            part: which of several tensors, where the node has several.

        Raises:
            NotVerifiableError: an operator is not known here.
        """
        key = (node.name, part, *(at.get_id() for at in place))
        found = self._known.get(key)
        if found is None:
            value = self.held(node, place) if part is None else None
            found = self._known[key] = place, self._computed(node, place, part) if value is None else value
        return found[1]

    def _computed(self, node: torch.fx.Node, place: Place, part: int | None) -> Expression:
        if node.target is operator.getitem:
            source, number = node.args
            if not isinstance(source, torch.fx.Node) or not isinstance(number, int):
                raise NotVerifiableError(f"a part of {source}")
            return self.element(source, place, number)
        schema = schema_of(node.target) if node.op == "call_function" else None
        name = schema.name if schema is not None else str(node.target)
        call = _Call(self, node, place)
        if part is not None:
            several = SEVERAL.get(name)
            if several is None:
                raise NotVerifiableError(f"{name}, whose meaning is not known here")
            return several(call, part)
        meaning = MEANINGS.get(name)
        if meaning is None:
            raise NotVerifiableError(f"{name}, whose meaning is not known here")
        return of_type(meaning(call), node.meta["val"].dtype)

    def reduced(self, kind: str, axes: Sequence[Expression], element: Callable[[Place], Expression]) -> Expression:
        """Return a constant for elements combined: ``axes`` are sizes, ``element`` tells one at a place of them."""
        number = next(self._numbers)
        bound = tuple(z3.Int(f"place{number} {axis}#") for axis in range(len(axes)))
        self.bounds.update({variable.decl().name(): size for variable, size in zip(bound, axes, strict=True)})
        one = element(bound)
        name = f"combined#{number}"
        self.reductions[name] = Reduction(kind, (), bound, one)
        return z3.Const(name, one.sort())


def of_type(value: Expression, dtype: torch.dtype) -> Expression:
    """Return a value as a type holds it; rounding is left out."""
    if dtype.is_complex:
        raise NotVerifiableError(f"{dtype}")
    if dtype == torch.bool:
        return reals.as_truth(value)
    return reals.as_real(value) if dtype.is_floating_point else reals.as_integer(value)


def _wrapped(value: Expression, dtype: torch.dtype) -> Expression:
    return symbols.wrapped(value, dtype.itemsize * 8, dtype.is_signed)


# Element by element


def _arithmetic(compute: Callable[..., Expression]) -> Callable[[_Call], Expression]:
    """Return the meaning of an operator that computes with numbers, or wraps integers."""

    def meaning(call: _Call) -> Expression:
        dtype = call.node.meta["val"].dtype
        if dtype.is_floating_point:
            return compute(*(reals.as_real(call.operand(value)) for value in call.arguments))
        return _wrapped(compute(*(reals.as_integer(call.operand(value)) for value in call.arguments)), dtype)

    return meaning


def _scaled(compute: Callable[[Expression, Expression], Expression]) -> Callable[[_Call], Expression]:
    """Return the meaning of an addition or subtraction, which may scale its second operand."""

    def meaning(call: _Call) -> Expression:
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
        return _wrapped(compute(reals.as_integer(left), scaled), dtype)

    return meaning


def _of_floats(compute: Callable[..., Expression]) -> Callable[[_Call], Expression]:
    return lambda call: compute(*(reals.as_real(call.operand(value)) for value in call.arguments))


def _unknown(name: str) -> Callable[[_Call], Expression]:
    return _of_floats(lambda *operands: reals.function(name, *operands))


def _together(*values: Expression) -> list[Expression]:
    """Return values of one type, the widest of theirs."""
    if any(value.sort().eq(reals.REAL) for value in values):
        return list(map(reals.as_real, values))
    if all(map(z3.is_bool, values)):
        return list(values)
    return list(map(reals.as_integer, values))


def _comparison(compare: Callable[[Any, Any], Expression]) -> Callable[[_Call], Expression]:
    def meaning(call: _Call) -> Expression:
        values = _together(*(call.operand(value) for value in call.arguments))
        ordered = compare not in (operator.eq, operator.ne)
        return compare(*(map(reals.as_integer, values) if ordered and z3.is_bool(values[0]) else values))

    return meaning


def _logic(compute: Callable[..., Expression], whole: bool = False) -> Callable[[_Call], Expression]:
    def meaning(call: _Call) -> Expression:
        if whole and call.node.meta["val"].dtype != torch.bool:
            raise NotVerifiableError(f"{call.node.target} of integers")
        return compute(*(reals.as_truth(call.operand(value)) for value in call.arguments))

    return meaning


def _divided(call: _Call) -> Expression:
    left, right = (call.operand(value) for value in call.arguments[:2])
    mode, dtype = call.node.kwargs.get("rounding_mode"), call.node.meta["val"].dtype
    if mode is None:
        return reals.divided(reals.as_real(left), reals.as_real(right))
    if dtype.is_floating_point:
        quotient = reals.divided(reals.as_real(left), reals.as_real(right))
        return reals.function("floor" if mode == "floor" else "trunc", quotient)
    divide = symbols.floored_quotient if mode == "floor" else symbols.truncated_quotient
    return divide(reals.as_integer(left), reals.as_integer(right))


def _clamped(call: _Call) -> Expression:
    value, low, high = call.operand(call.arguments[0]), call.given(1, "min"), call.given(2, "max")
    if low is not None:
        value = _chosen(value, call.operand(low), operator.gt)
    return value if high is None else _chosen(value, call.operand(high), operator.lt)


def _bounded(first: Callable[[Any, Any], Any]) -> Callable[[_Call], Expression]:
    return lambda call: _chosen(call.operand(call.arguments[0]), call.operand(call.arguments[1]), first)


def _chosen(one: Expression, other: Expression, first: Callable[[Any, Any], Any]) -> Expression:
    left, right = _together(one, other)
    return z3.If(first(left, right), left, right)


def _where(call: _Call) -> Expression:
    condition, *values = (call.operand(value) for value in call.arguments)
    return z3.If(reals.as_truth(condition), *_together(*values))


def _sign(value: Expression) -> Expression:
    one, none, other = _together(z3.IntVal(1), z3.IntVal(0), value)
    return z3.If(other > none, one, z3.If(other < none, -one, none))


def _added(compute: Callable[[Expression, Expression], Expression]) -> Callable[[_Call], Expression]:
    """Return the meaning of adding what ``compute`` makes of two operands, scaled."""

    def meaning(call: _Call) -> Expression:
        value, *operands = (reals.as_real(call.operand(argument)) for argument in call.arguments[:3])
        return value + reals.as_real(number_of(call.node.kwargs.get("value", 1))) * compute(*operands)

    return meaning


def _converted(call: _Call) -> Expression:
    """Return an element as another type: integers that do not fit wrap, what floats become is as in the kernel."""
    value, dtype = call.operand(call.arguments[0]), call.node.meta["val"].dtype
    old = source_of(call).meta["val"].dtype
    if dtype.is_floating_point or torch.bool in (old, dtype) or old.is_floating_point or dtype.is_complex:
        return value
    own, other = (symbols.limits(kind.itemsize * 8, kind.is_signed) for kind in (old, dtype))
    return value if other[0] <= own[0] and own[1] <= other[1] else _wrapped(value, dtype)


def _first(call: _Call) -> Expression:
    return call.operand(call.arguments[0])


# Places


def _axis(number: int, rank: int) -> int:
    return number + rank if number < 0 else number


def source_of(call: _Call) -> torch.fx.Node:
    """Return the tensor that a view is of."""
    found = call.arguments[0]
    if not isinstance(found, torch.fx.Node) or not is_tensor(found):
        raise NotVerifiableError(f"{call.node.target} of {found}")
    return found


def _elsewhere(places: Callable[[_Call, Place], Sequence[Expression]]) -> Callable[[_Call], Expression]:
    """Return the meaning of a view: an element of its argument, at a place that ``places`` tells."""
    return lambda call: call.region.element(source_of(call), tuple(places(call, shape_of(source_of(call)))))


def _permuted(call: _Call, shape: Place) -> list[Expression]:
    order = [_axis(number, len(shape)) for number in call.arguments[1]]
    found = list(call.place)
    for at, axis in zip(call.place, order, strict=True):
        found[axis] = at
    return found


def _transposed(call: _Call, shape: Place) -> list[Expression]:
    found = list(call.place)
    one, other = (_axis(call.given(n, "", d), len(shape)) for n, d in ((1, 0), (2, 1))) if shape else (0, 0)
    if len(shape) > 1:
        found[one], found[other] = found[other], found[one]
    return found


def _unsqueezed(call: _Call, shape: Place) -> list[Expression]:
    found = list(call.place)
    del found[_axis(call.arguments[1], len(call.place))]
    return found


def _squeezed(call: _Call, shape: Place) -> list[Expression]:
    chosen = call.given(1, "dim", range(len(shape)))
    axes = {_axis(n, len(shape)) for n in ([chosen] if isinstance(chosen, int) else chosen)}
    kept = iter(call.place)
    gone = [axis in axes and constant(size) == 1 for axis, size in enumerate(shape)]
    return [z3.IntVal(0) if is_gone else next(kept) for is_gone in gone]


def _expanded(call: _Call, shape: Place) -> list[Expression]:
    kept = call.place[len(call.place) - len(shape) :]
    return [z3.IntVal(0) if constant(size) == 1 else at for size, at in zip(shape, kept, strict=True)]


def _sliced(call: _Call, shape: Place) -> list[Expression]:
    axis, start, _, step = _slice(call, shape, 1)
    found = list(call.place)
    found[axis] = start + found[axis] * step
    return found


def _slice(call: _Call, shape: Place, first: int) -> tuple[int, Expression, Expression, int]:
    """Return the axis of a slice, where it starts and ends, and its step."""
    axis = _axis(call.given(first, "dim", 0), len(shape))
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


def _selected(call: _Call, shape: Place) -> list[Expression]:
    axis = _axis(call.arguments[1], len(shape))
    number = number_of(call.arguments[2])
    found = list(call.place)
    found.insert(axis, z3.simplify(z3.If(number < 0, number + shape[axis], number)))
    return found


def _flipped(call: _Call, shape: Place) -> list[Expression]:
    axes = {_axis(number, len(shape)) for number in call.arguments[1]}
    pairs = enumerate(zip(shape, call.place, strict=True))
    return [size - 1 - at if axis in axes else at for axis, (size, at) in pairs]


def _restrided(call: _Call, shape: Place) -> list[Expression]:
    """Return the place of an element of ``as_strided``, whose argument has to be contiguous."""
    source = source_of(call)
    if not source.meta["val"].is_contiguous() or source.op == "placeholder":
        raise NotVerifiableError("aten::as_strided of a tensor that is not contiguous")
    terms = [at * number_of(stride) for at, stride in zip(call.place, call.arguments[2], strict=True)]
    return digits(z3.simplify(z3.Sum([number_of(call.given(3, "storage_offset") or 0), *terms])), shape)


def _diagonal(call: _Call, shape: Place) -> list[Expression]:
    offset = call.given(1, "offset", 0)
    one, other = (_axis(call.given(n, name, d), len(shape)) for n, name, d in ((2, "dim1", 0), (3, "dim2", 1)))
    *kept, last = call.place
    rest = iter(kept)
    own = {one: last - min(offset, 0), other: last + max(offset, 0)}
    return [own[axis] if axis in own else next(rest) for axis in range(len(shape))]


def _unfolded(call: _Call, shape: Place) -> list[Expression]:
    axis, _, step = _axis(call.arguments[1], len(shape)), call.arguments[2], call.arguments[3]
    found = list(call.place[:-1])
    found[axis] = found[axis] * step + call.place[-1]
    return found


def _reshaped(call: _Call, shape: Place) -> list[Expression]:
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
    position = _position([at for at, _ in middle], [size for _, size in middle])
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


def _position(place: Sequence[Expression], sizes: Sequence[Expression]) -> Expression:
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


def _picked(call: _Call) -> Expression:
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
            index = _Call(call.region, call.node, inner).operand(indices[axis])
            call.region.assumed.append(z3.And(index >= -size, index < size))
            place.append(_from_end(index, size))
    return call.region.element(source, tuple(place))


def _from_end(index: Expression, size: Expression) -> Expression:
    return z3.If(index < 0, index + size, index)


def _index(call: _Call, index: Expression, size: Expression) -> Expression:
    """Return an index that has to lie in its axis, and may not count from the end."""
    call.region.assumed.append(z3.And(index >= 0, index < size))
    return index


def _remainder(real: str, whole: Callable[[Expression, Expression], Expression]) -> Callable[[_Call], Expression]:
    def meaning(call: _Call) -> Expression:
        left, right = (call.operand(value) for value in call.arguments)
        if call.node.meta["val"].dtype.is_floating_point:
            return reals.function(real, reals.as_real(left), reals.as_real(right))
        return whole(reals.as_integer(left), reals.as_integer(right))

    return meaning


def _embedded(call: _Call) -> Expression:
    index = call.arguments[1]
    table = source_of(call)
    row = _index(call, call.region.element(index, call.place[:-1]), shape_of(table)[0])
    return call.region.element(table, (row, call.place[-1]))


def _gathered(call: _Call) -> Expression:
    source = source_of(call)
    shape = shape_of(source)
    axis = _axis(call.arguments[1], len(shape))
    place = list(call.place)
    place[axis] = _index(call, call.region.element(call.arguments[2], call.place), shape[axis])
    return call.region.element(source, tuple(place))


def _index_selected(call: _Call) -> Expression:
    source = source_of(call)
    shape = shape_of(source)
    axis = _axis(call.arguments[1], len(shape))
    place = list(call.place)
    place[axis] = _index(call, call.region.element(call.arguments[2], (place[axis],)), shape[axis])
    return call.region.element(source, tuple(place))


def _concatenated(call: _Call) -> Expression:
    tensors = [tensor for tensor in call.arguments[0] if tuple(tensor.meta["val"].shape) != (0,)]
    axis = _axis(call.given(1, "dim", 0), len(call.place))
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


def _padded(call: _Call) -> Expression:
    source, widths, value = source_of(call), call.arguments[1], call.given(2, "value", 0)
    shape = shape_of(source)
    place, inside = list(call.place), []
    for number in range(len(widths) // 2):
        axis = len(shape) - 1 - number
        place[axis] = place[axis] - number_of(widths[2 * number])
        inside += [place[axis] >= 0, place[axis] < shape[axis]]
    dtype = call.node.meta["val"].dtype
    return z3.If(z3.And(*inside), call.region.element(source, tuple(place)), of_type(number_of(value), dtype))


def _slice_replaced(call: _Call) -> Expression:
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


def _selection_replaced(call: _Call) -> Expression:
    source, other = source_of(call), call.arguments[1]
    shape = shape_of(source)
    axis = _axis(call.arguments[2], len(shape))
    number = z3.simplify(_from_end(number_of(call.arguments[3]), shape[axis]))
    place = list(call.place)
    at = place.pop(axis)
    new = of_type(call.region.element(other, tuple(place)), call.node.meta["val"].dtype)
    return z3.If(at == number, new, call.region.element(source, call.place))


def _piece(sizes: Callable[[_Call, Expression], Sequence[Any]]) -> Callable[[_Call, int], Expression]:
    def meaning(call: _Call, part: int) -> Expression:
        source = source_of(call)
        axis = _axis(call.given(2, "dim", 0), source.meta["val"].dim())
        lengths = sizes(call, shape_of(source)[axis])
        place = list(call.place)
        place[axis] = place[axis] + sum(map(number_of, lengths[:part]), start=z3.IntVal(0))
        return call.region.element(source, tuple(place))

    return meaning


def _unbound(call: _Call, part: int) -> Expression:
    source = source_of(call)
    place = list(call.place)
    place.insert(_axis(call.given(1, "dim", 0), source.meta["val"].dim()), z3.IntVal(part))
    return call.region.element(source, tuple(place))


# Made of nothing


def _filled(number: int, name: str = "fill_value") -> Callable[[_Call], Expression]:
    return lambda call: number_of(call.given(number, name))


def _constant(value: int) -> Callable[[_Call], Expression]:
    return lambda call: z3.IntVal(value)


def _counted(call: _Call) -> Expression:
    start, step = call.node.kwargs.get("start", 0), call.node.kwargs.get("step", 1)
    return call.size(start) + call.place[0] * call.size(step)


def _ranged(first: int) -> Callable[[_Call], Expression]:
    """Return the meaning of ``arange``, of which position ``first`` is where it starts, if any."""

    def meaning(call: _Call) -> Expression:
        start = number_of(call.arguments[0]) if first >= 0 else z3.IntVal(0)
        step = number_of(call.given(2, "step", 1)) if first >= 0 else z3.IntVal(1)
        at = call.place[0]
        return (
            start + at * step
            if z3.is_int(start) and z3.is_int(step)
            else reals.as_real(start) + z3.ToReal(at) * reals.as_real(step)
        )

    return meaning


# Sums and the like


def _combined(
    call: _Call, kind: str, axes: Any, keep: bool, element: Callable[[Expression], Expression] = lambda value: value
) -> Expression:
    """Return the elements of the first argument along ``axes`` combined, each changed by ``element`` before."""
    source = source_of(call)
    shape = shape_of(source)
    if axes is None or axes == []:
        axes = range(len(shape))
    gone = (
        sorted({_axis(number, len(shape)) for number in ([axes] if isinstance(axes, int) else axes)}) if shape else []
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


def _count(call: _Call, axes: Any) -> Expression:
    shape = shape_of(source_of(call))
    if axes is None or axes == []:
        axes = range(len(shape))
    chosen = {_axis(number, len(shape)) for number in ([axes] if isinstance(axes, int) else axes)} if shape else set()
    found: Expression = z3.IntVal(1)
    for axis in chosen:
        found = found * shape[axis]
    return z3.simplify(found)


def _typed(call: _Call) -> Callable[[Expression], Expression]:
    dtype = call.node.meta["val"].dtype
    return lambda value: of_type(value, dtype)


def _reduction(kind: str, convert: bool = False) -> Callable[[_Call], Expression]:
    def meaning(call: _Call) -> Expression:
        change = _typed(call) if convert else lambda value: value
        return _combined(call, kind, call.given(1, "dim"), call.given(2, "keepdim", False), change)

    return meaning


def _summed_product(call: _Call) -> Expression:
    axes = call.given(1, "dim")
    keep = call.given(2, "keepdim", False)
    if axes is not None and not isinstance(axes, int):
        axes = None
    return _combined(call, PRODUCT, axes, keep, _typed(call))


def _mean(call: _Call) -> Expression:
    axes = call.given(1, "dim")
    total = _combined(call, SUM, axes, call.given(2, "keepdim", False), _typed(call))
    return reals.divided(total, reals.as_real(_count(call, axes)))


def _variance(call: _Call, axes: Any, keep: bool, correction: Any) -> Expression:
    count = _count(call, axes)
    total = _combined(call, SUM, axes, keep)
    mean = reals.divided(total, reals.as_real(count))
    squares = _combined(call, SUM, axes, keep, lambda value: (value - mean) * (value - mean))
    left = reals.as_real(count) - reals.as_real(number_of(correction))
    return reals.divided(squares, z3.simplify(left))


def _corrected(call: _Call) -> tuple[Any, bool, Any]:
    """Return the axes of a variance, whether they are kept, and what is subtracted from their size."""
    axes, correction = call.given(1, "dim"), call.node.kwargs.get("correction", 1)
    return axes, bool(call.node.kwargs.get("keepdim", False)), 1 if correction is None else correction


def _var(call: _Call) -> Expression:
    return _variance(call, *_corrected(call))


def _var_mean(call: _Call, part: int) -> Expression:
    axes, keep, correction = _corrected(call)
    if part == 0:
        return _variance(call, axes, keep, correction)
    return reals.divided(_combined(call, SUM, axes, keep), reals.as_real(_count(call, axes)))


def _any(call: _Call) -> Expression:
    return _combined(call, ANY, call.given(1, "dim"), call.given(2, "keepdim", False), reals.as_truth)


def _all(call: _Call) -> Expression:
    negated = _combined(
        call, ANY, call.given(1, "dim"), call.given(2, "keepdim", False), lambda v: z3.Not(reals.as_truth(v))
    )
    return z3.Not(negated)


def _extreme(kind: str) -> Callable[[_Call, int], Expression]:
    def meaning(call: _Call, part: int) -> Expression:
        if part != 0:
            raise NotVerifiableError(f"{call.node.target}: where the {kind} is")
        return _combined(call, kind, call.arguments[1], call.given(2, "keepdim", False))

    return meaning


# What kernels call by the same name, and of which nothing else needs to be known.
# fmt: off
_OF_FLOATS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin",
    "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "floor", "ceil", "trunc", "lgamma", "atan2",
    "hypot",
)
# fmt: on

MEANINGS: dict[str, Callable[[_Call], Expression]] = {
    # Of single elements.
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
        *_together(call.operand(call.arguments[2]), call.operand(call.arguments[0])),
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
    # Of other places.
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
    # Of nothing.
    "aten::full": _filled(1),
    "aten::full_like": _filled(1),
    "aten::new_full": _filled(2),
    "aten::fill": lambda call: call.operand(call.arguments[1]),
    "aten::scalar_tensor": _filled(0),
    **dict.fromkeys(("aten::zeros", "aten::zeros_like", "aten::new_zeros"), _constant(0)),
    **dict.fromkeys(("aten::ones", "aten::ones_like", "aten::new_ones"), _constant(1)),
    "prims::iota": _counted,
    "aten::arange": _ranged(-1),
    # Of many elements.
    "aten::sum": _reduction(SUM, convert=True),
    "aten::mean": _mean,
    "aten::prod": _summed_product,
    "aten::amax": _reduction(LARGEST),
    "aten::amin": _reduction(SMALLEST),
    "aten::var": _var,
    "aten::any": _any,
    "aten::all": _all,
}
"""What operators mean, by their names; overloads mean the same with other arguments."""

SEVERAL: dict[str, Callable[[_Call, int], Expression]] = {
    "aten::split": _piece(lambda call, size: _equal_pieces(call.arguments[1], size)),
    "aten::split_with_sizes": _piece(lambda call, size: call.arguments[1]),
    "aten::unbind": _unbound,
    "aten::var_mean": _var_mean,
    "aten::max": _extreme(LARGEST),
    "aten::min": _extreme(SMALLEST),
}
"""Those that return several tensors."""


def _equal_pieces(length: Any, size: Expression) -> list[Any]:
    total = constant(size)
    if total is None or not isinstance(length, int):
        raise NotVerifiableError("a split into pieces of a symbolic size")
    return [length] * -(-int(total) // max(1, length))
