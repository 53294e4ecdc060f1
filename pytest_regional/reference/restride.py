"""Give every value that leaves a region the strides that the outer graph was traced with.

Inductor's decompositions may choose others: ``roll`` of a channels-last tensor is contiguous in eager mode and
channels-last in a region. The outer graph relies on what it was traced with (a ``view`` after it fails otherwise), so
such a value is copied into the expected order. A value that shares memory with an input keeps it and is left alone.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.region_compile import size_hint, storage_key

Strides = Sequence[Any]


def restore_strides(call: torch.fx.Node, actual: Sequence[Strides | None]) -> list[int]:
    """Reorder the outputs of the compiled ``call`` whose strides are not those of the trace; return their indices."""
    inputs = {storage_key(argument.meta.get("val")) for argument in call.all_input_nodes}
    restored = []
    for element in [user for user in call.users if user.target is operator.getitem]:
        index: Any = element.args[1]
        expected = element.meta.get("val")
        if storage_key(expected) in {None, *inputs} or index >= len(actual):
            continue
        if _differ(expected, actual[index]):
            _reorder(element, expected)
            restored.append(index)
    return restored


def _differ(expected: torch.Tensor, actual: Strides | None) -> bool:
    """Compare where it matters: the stride of a dimension of size one is nobody's business."""
    if actual is None or expected.layout is not torch.strided:
        return False
    pairs = zip(expected.shape, expected.stride(), actual, strict=True)
    return any(str(stride) != str(other) for size, stride, other in pairs if str(size) != "1")


def _reorder(element: torch.fx.Node, expected: torch.Tensor) -> None:
    order = _memory_order(expected)
    users = list(element.users)
    aten = torch.ops.aten
    graph = element.graph
    with graph.inserting_after(element):
        outermost_first = graph.call_function(aten.permute.default, (element, order))
    with graph.inserting_after(outermost_first):
        packed = graph.call_function(aten.clone.default, (outermost_first,), {"memory_format": torch.contiguous_format})
    with graph.inserting_after(packed):
        restored = graph.call_function(aten.permute.default, (packed, [order.index(i) for i in range(len(order))]))
    # The region is what was compiled; what stands behind it is none of its operators.
    restored.meta = {key: value for key, value in element.meta.items() if key != "custom"}
    for user in users:
        user.replace_input_with(element, restored)


def _memory_order(value: torch.Tensor) -> list[int]:
    """Return the dimensions from the largest stride to the smallest; the original order breaks ties."""
    return sorted(range(value.dim()), key=lambda i: (-size_hint(value.stride(i)), -size_hint(value.shape[i])))
