"""Triton's checks of types, without making the same types over and over.

A kernel of thirty operations makes a thousand objects that describe the types of its blocks; half the time of a launch
went there. The outcome of every check is Triton's own: what is not an ordinary case goes to Triton's method.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import triton.language as tl

from pytest_regional._torch.triton_language import semantic_class
from pytest_regional.emulation.interpreter.values import Array, TensorHandle

# Binary operations on two of one of these types happen in that type.
_PLAIN = frozenset({"fp32", "fp64", "int32", "int64"})

_original_block_init: Any = tl.block_type.__init__
_original_tensor_init: Any = tl.core.tensor.__init__


@cache
def _block_parts(element: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return an empty place for the attributes of one block type."""
    return {}


def _numbers(shape: Any) -> tuple[int, ...]:
    return tuple(size.value if isinstance(size, tl.constexpr) else size for size in shape)


def block_type_init(self: Any, element_ty: Any, shape: Any) -> None:
    """Replace ``block_type.__init__``: the attributes of an equal type that was made before."""
    parts = _block_parts(getattr(element_ty, "name", ""), _numbers(shape))
    if not parts:
        _original_block_init(self, element_ty, list(shape))
        parts.update(vars(self))
    vars(self).update(parts)


def quick_unwrapping(original: Any) -> Any:
    """Return ``original``, which takes the value out of a constant, with the common cases first."""
    constant, tensor = tl.constexpr, tl.core.tensor

    def unwrap(value: Any) -> Any:
        kind = type(value)
        if kind is tensor:
            return value
        return value.value if kind is constant else original(value)

    return unwrap


@cache
def _tensor_parts(shape: tuple[int, ...]) -> dict[str, Any]:
    return {}


def tensor_init(self: Any, handle: Any, type: Any) -> None:
    """Replace ``tensor.__init__``: its shape is that of an equal tensor that was made before."""
    parts = _tensor_parts(tuple(type.shape) if type.is_block() else ())
    if not parts:
        _original_tensor_init(self, handle, type)
        parts.update(shape=self.shape, numel=self.numel)
    vars(self).update(parts, handle=handle, type=type, dtype=type.scalar)


def spread(data: Array, shape: tuple[int, ...]) -> Array:
    """Return ``data`` repeated to ``shape`` without a copy; a single element needs none of numpy's checks."""
    if data.size == 1 and data.dtype != np.bool_:
        return np.ndarray(shape, data.dtype, np.ascontiguousarray(data), 0, (0,) * len(shape))
    return np.broadcast_to(data, shape)


class _FastPaths:
    """Methods that come before those of ``TritonSemantic``."""

    def broadcast_impl_value(self, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        """Give both operands the same shape."""
        left, right = _shape(lhs), _shape(rhs)
        if left == right:
            return lhs, rhs
        if left is None or right is None:
            common = left or right or ()
        else:
            try:
                common = np.broadcast_shapes(left, right)
            except ValueError:
                return super().broadcast_impl_value(lhs, rhs)  # type: ignore[misc, no-any-return]
        return _in_shape(lhs, left, common), _in_shape(rhs, right, common)

    def cast(self, input: Any, dst_ty: Any, *arguments: Any, **named: Any) -> Any:
        """Convert; to the type a tensor has already is nothing to do."""
        if input.dtype is dst_ty.scalar and not arguments and not named:
            return input
        return super().cast(input, dst_ty, *arguments, **named)  # type: ignore[misc]

    def binary_op_type_checking_impl(self, lhs: Any, rhs: Any, *arguments: Any, **named: Any) -> tuple[Any, Any]:
        """Give both operands the same type and shape."""
        left = getattr(lhs, "dtype", None)
        if left is getattr(rhs, "dtype", None) and getattr(left, "name", None) in _PLAIN:
            return self.broadcast_impl_value(lhs, rhs)
        return super().binary_op_type_checking_impl(lhs, rhs, *arguments, **named)  # type: ignore[misc, no-any-return]


def _shape(value: Any) -> tuple[int, ...] | None:
    return value.handle.data.shape if value.type.is_block() else None


def _in_shape(value: Any, own: tuple[int, ...] | None, common: tuple[int, ...]) -> Any:
    if own == common:
        return value
    handle = value.handle
    data = spread(handle.data.reshape(()) if own is None else handle.data, common)
    return tl.core.tensor(TensorHandle(data, handle.dtype, handle.attr), tl.block_type(value.dtype, common))


def fast_semantic(builder: Any) -> Any:
    """Return Triton's type rules on top of ``builder``, with these methods before Triton's."""
    return type("EmulatingSemantic", (_FastPaths, semantic_class()), {})(builder)
