"""Views in a graph: which node is a view of which, and when two of them are the same bytes read the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.pass_values import known_equal
from pytest_regional._torch.region_compile import is_op_overload, storage_key

# A chain of views longer than this is looked at piece by piece.
_REACH = 32
_aten = torch.ops.aten
# Its schema says that the result is new; it never is.
_VIEWS_BY_NATURE = (_aten._unsafe_view.default,)


def viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the node whose memory ``node`` only looks at in another way, or None if it is no view."""
    if node.op != "call_function" or not is_op_overload(node.target) or not node.args:
        return None
    source = node.args[0]
    if not isinstance(source, torch.fx.Node) or not (node.target in _VIEWS_BY_NATURE or _is_view_op(node.target)):
        return None
    key = storage_key(node.meta.get("val"))
    return source if key is not None and key == storage_key(source.meta.get("val")) else None


@cache
def _is_view_op(target: Any) -> bool:
    """Return whether ``target`` has one result, which the schema says may share memory with its first argument."""
    schema = target._schema
    if len(schema.returns) != 1 or not schema.arguments or schema.is_mutable:
        return False
    result, argument = schema.returns[0].alias_info, schema.arguments[0].alias_info
    return result is not None and argument is not None and not result.is_write


def views_up_from(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yield what ``node`` views, what that views, and so on, as far as their metadata is theirs still."""
    current: torch.fx.Node | None = node
    for _ in range(_REACH):
        assert current is not None
        current = viewed(current)
        if current is None or _changes_shape_in_place(current):
            return
        yield current


def _changes_shape_in_place(node: torch.fx.Node) -> bool:
    """``t_``, ``resize_``, ``set_`` and their kind: what was traced of ``node`` does not hold for its later users."""
    return any(_changes_metadata(user) for user in node.users)


def _changes_metadata(user: torch.fx.Node) -> bool:
    target: Any = user.target
    if not is_op_overload(target) or not target._schema.is_mutable:
        return False
    return torch.Tag.inplace_view in target.tags or target._opname.startswith(("resize_", "set_", "resize_as_"))


def same_tensor(first: Any, second: Any) -> bool:
    """Return whether two (fake) tensors of one storage are the same elements in the same places."""
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    if storage_key(first) != storage_key(second) or not same_layout(first, second):
        return False
    return known_equal(first.storage_offset(), second.storage_offset())


def same_layout(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors differ in nothing but their memory."""
    if first.layout is not torch.strided or second.layout is not torch.strided:
        return False
    kinds = ((one.dtype, one.device, one.is_conj(), one.is_neg(), type(one)) for one in (first, second))
    return next(kinds) == next(kinds) and _equal(first.shape, second.shape) and _equal(first.stride(), second.stride())


def _equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(map(known_equal, first, second))


def is_plainly_contiguous(value: Any) -> bool:
    """Return whether strides are the products of the sizes behind them, those of single elements, too."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not known_equal(stride, expected):
            return False
        expected = expected * size
    return True


def permutation(node: torch.fx.Node) -> tuple[int, ...] | None:
    """Return which dimension of its argument each dimension of ``node`` is, or None if it does not permute."""
    value, target = node.meta.get("val"), node.target
    if not isinstance(value, torch.Tensor) or node.kwargs:
        return None
    rank = value.dim()
    if target is _aten.t.default:
        return (1, 0) if rank == 2 else tuple(range(rank))
    if target is _aten.transpose.int and rank:
        first, second = (int(dim) % rank for dim in node.args[1:3])
        swapped = {first: second, second: first}
        return tuple(swapped.get(dim, dim) for dim in range(rank))
    if target is _aten.permute.default:
        dims: Any = node.args[1]
        return tuple(int(dim) % rank for dim in dims)
    return None
