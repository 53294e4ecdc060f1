"""The elements of a tensor of any layout and dtype as a plain tensor, and what else describes it.

Sparse, quantized and nested tensors, and those of dtypes without arithmetic, are no plain memory of numbers: operators
that read them so raise, or end the process (``view(torch.uint8)`` of a quantized tensor does).
"""

from __future__ import annotations

from typing import Any

import numpy
import torch

from pytest_regional._base.errors import RegionalError
from pytest_regional._base.text import first_line

#: Dtypes that hold bits and know no operators, not even a copy.
_BITS = frozenset(
    getattr(torch, name)
    for name in (
        "float4_e2m1fn_x2",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
        *("bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    )
    if hasattr(torch, name)
)
_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32)
_INDICES = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_OF_TENSOR = ("qscheme", "q_scale", "q_zero_point")
_OF_CHANNELS = ("qscheme", "q_per_channel_axis", "q_per_channel_scales", "q_per_channel_zero_points")


class UnreadableTensorError(RegionalError, ValueError):
    """A tensor whose elements cannot be compared; the message says why."""


def has_arithmetic(tensor: torch.Tensor) -> bool:
    """Say whether operators compute with the elements of ``tensor``, as those of the float64 run do."""
    return not (tensor.dtype in _BITS or tensor.is_quantized or tensor.is_nested)


def dense_value(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of ``tensor``'s elements, strided: numbers, or bytes where the dtype knows no operators.

    Raises:
        UnreadableTensorError: it has no elements, or PyTorch has no way to read them.
    """
    if tensor.device.type == "meta":
        raise UnreadableTensorError("on the meta device, where tensors have no values")
    try:
        return _elements(tensor.detach())
    except (RuntimeError, TypeError) as error:
        kind = type(tensor).__name__
        raise UnreadableTensorError(f"a {kind} of {tensor.dtype} cannot be read: {first_line(error)}") from error


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_nested:
        parts = [_elements(part).reshape(-1) for part in tensor.unbind()]
        return torch.cat(parts) if parts else torch.empty(0, dtype=tensor.dtype)
    if tensor.is_quantized:
        if tensor.dtype not in _QUANTIZED:
            raise TypeError("several elements share a byte")
        return tensor.int_repr()
    if tensor.dtype in _BITS:
        return tensor.view(torch.uint8 if tensor.itemsize == 1 else torch.int16).clone()
    if tensor.layout != torch.strided:
        return tensor.to_dense().clone()
    if type(tensor) is not torch.Tensor and not hasattr(tensor, "__tensor_flatten__"):
        tensor = tensor.as_subclass(torch.Tensor)
    return tensor.clone()


def shape_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the shape; of a nested tensor the shapes of its parts."""
    return tuple(tuple(part.shape) for part in tensor.unbind()) if tensor.is_nested else tuple(tensor.shape)


def parts_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Return, by what gives it, what describes the values besides the elements: which are stored, and the scale."""
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        return {".is_coalesced()": tensor.is_coalesced(), ".coalesce().indices()": tensor.coalesce().indices()}
    if tensor.layout in _INDICES:
        return {f".{name}()": getattr(tensor, name)() for name in _INDICES[tensor.layout]}
    if not tensor.is_quantized:
        return {}
    whole = tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
    names = _OF_TENSOR if whole else _OF_CHANNELS
    return {f".{name}()": getattr(tensor, name)() for name in names}


#: How attributes begin that ``torch._dynamo.mark_dynamic`` and the like leave on a tensor (2.11 to 2.15).
_OF_DYNAMO = ("_dynamo_", "_has_dynamo_")


def attributes_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Return what Python code has set on ``tensor``; what Dynamo notes there is left out."""
    return {f".{name}": value for name, value in vars(tensor).items() if not name.startswith(_OF_DYNAMO)}


def of_array(array: Any) -> torch.Tensor | None:
    """Return a copy of a numpy array or number as a tensor; None for dtypes that torch has not."""
    try:
        return torch.from_numpy(numpy.array(array))
    except TypeError:
        return None
