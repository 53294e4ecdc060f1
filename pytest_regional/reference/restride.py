"""Give every value that leaves a region the strides that the outer graph was traced with.

Inductor's decompositions may choose others: ``roll`` of a channels-last tensor is contiguous in eager mode and
channels-last in a region; a slice of what a region computed has gaps in eager mode and none in a region. The outer
graph relies on what it was traced with (a ``view`` after it, or the region that reads it, fails otherwise), so such a
value is copied:

- a dense value in another order is copied into the expected order, which needs no sizes;
- dimensions of stride zero are narrowed to one element before the copy, and expanded again behind it;
- any other value (gaps between elements, windows that overlap) is copied to exactly the expected strides.

Where a compiler does not say which strides it chose, a dense value is copied only if it has to be, any other one
always. A value that shares memory with an input keeps it and is left alone. Symbolic strides with gaps are computed in
the outer graph; where nothing near says what a symbol in them is, the value gets the order of its dimensions alone.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.fx_graphs import node_for_number
from pytest_regional._torch.operators import copy_to_strides
from pytest_regional._torch.tracing import free_symbols, is_symbolic, known_equal, size_hint, storage_key
from pytest_regional.reference.extract import nodes_of_symbols

Strides = Sequence[Any]


def restore_strides(call: torch.fx.Node, actual: Sequence[Strides | None]) -> list[int]:
    """Restore the outputs of the compiled ``call`` whose strides are not those of the trace; return their indices.

    Args:
        call: The call of a region; its ``getitem`` users hold the traced values.
        actual: Strides of each output; None, or an end that comes too early, where they are not known.
    """
    inputs = {storage_key(argument.meta.get("val")) for argument in call.all_input_nodes}
    restored = []
    for element in [user for user in call.users if user.target is operator.getitem]:
        index: Any = element.args[1]
        expected = element.meta.get("val")
        if storage_key(expected) in {None, *inputs} or expected.layout is not torch.strided or not expected.dim():
            continue
        known = actual[index] if index < len(actual) else None
        if known is None or _differ(expected, known):
            _restore(element, expected, is_known=known is not None)
            restored.append(index)
    return restored


def _differ(expected: torch.Tensor, actual: Strides) -> bool:
    """Compare where it matters: the stride of a dimension of size one is nobody's business."""
    pairs = zip(expected.shape, expected.stride(), actual, strict=True)
    return any(str(stride) != str(other) for size, stride, other in pairs if str(size) != "1")


def _restore(element: torch.fx.Node, expected: torch.Tensor, *, is_known: bool) -> None:
    users = list(element.users)
    with element.graph.inserting_before(element.next):
        restored = _restored(element, expected, is_known=is_known)
    # The region is what was compiled; what stands behind it is none of its operators.
    restored.meta = {key: value for key, value in element.meta.items() if key != "custom"}
    for user in users:
        user.replace_input_with(element, restored)


def _restored(element: torch.fx.Node, expected: torch.Tensor, *, is_known: bool) -> torch.fx.Node:
    call, aten = element.graph.call_function, torch.ops.aten
    value, shape = element, list(expected.shape)
    for dim, stride in enumerate(expected.stride()):
        if not is_symbolic(stride) and stride == 0:
            value, shape[dim] = call(aten.slice.Tensor, (value, dim, 0, 1)), 1
    order = _memory_order(shape, expected.stride())
    strides = None if _is_dense(shape, expected.stride(), order) else _stride_nodes(element, expected.stride())
    if strides is None:
        value = _in_order(value, order, memory_is_known=is_known)
    else:
        value = call(copy_to_strides(), (value, strides))
    return value if shape == list(expected.shape) else call(aten.expand_as.default, (value, element))


def _in_order(value: torch.fx.Node, order: list[int], *, memory_is_known: bool) -> torch.fx.Node:
    """Pack ``value`` with its dimensions in ``order``; where it may be so already, only if it is not."""
    call, aten = value.graph.call_function, torch.ops.aten
    is_row_major = order == sorted(order)
    if not is_row_major:
        value = call(aten.permute.default, (value, order))
    if memory_is_known:
        value = call(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
    else:
        value = call(aten.contiguous.default, (value,))
    if is_row_major:
        return value
    return call(aten.permute.default, (value, [order.index(dim) for dim in range(len(order))]))


def _memory_order(shape: Sequence[Any], strides: Strides) -> list[int]:
    """Return the dimensions from the largest stride to the smallest; the original order breaks ties."""
    return sorted(range(len(shape)), key=lambda dim: (-size_hint(strides[dim]), -size_hint(shape[dim])))


def _is_dense(shape: Sequence[Any], strides: Strides, order: Sequence[int]) -> bool:
    """Return whether memory in ``order`` surely has neither gaps nor overlaps, whatever symbolic sizes are."""
    step: Any = 1
    for dim in reversed(order):
        if not is_symbolic(shape[dim]) and shape[dim] == 1:
            continue
        if not known_equal(strides[dim], step):
            return False
        step = step * shape[dim]
    return True


def _stride_nodes(element: torch.fx.Node, strides: Strides) -> list[Any] | None:
    """Return ``strides`` as numbers and nodes; None where nothing that the region reads bears a symbol in them."""
    needed = {str(name) for stride in strides for name in free_symbols(stride)}
    (region,) = element.all_input_nodes
    bearers = nodes_of_symbols(element.graph, needed, [*region.all_input_nodes, element])
    if bearers.keys() < needed:
        return None
    return [node_for_number(element.graph, stride, bearers) for stride in strides]
