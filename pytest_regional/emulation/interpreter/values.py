"""Triton's types as numpy arrays, and conversions between them as a GPU does them.

bfloat16 is held in uint16 and the 8-bit floats in uint8, bit by bit, as Triton's interpreter holds them; arithmetic on
them happens in float32 and is rounded after every operation.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from pytest_regional._torch.triton import semantic_class
from pytest_regional.emulation.device import UnsupportedByEmulationError

Array: TypeAlias = npt.NDArray[Any]


class TensorHandle:
    """What a ``tl.tensor`` holds: an array, the type of its elements, and ``attr``, what else is known about it.

    It stands for the class of the same name in Triton's interpreter, whose methods make and take both.
    """

    __slots__ = ("attr", "data", "dtype")

    def __init__(self, data: Array, dtype: Any, attr: dict[str, Any] | None = None) -> None:
        self.data = data
        self.dtype = dtype
        self.attr = {} if attr is None else attr

    def __bool__(self) -> bool:
        return bool(self.data.all())

    def get_element_ty(self) -> Any:
        """Return the type of an element, of a pointer what it points to."""
        found = self.dtype
        while hasattr(found, "element_ty"):
            found = found.element_ty
        return found

    def clone(self) -> TensorHandle:
        """Return a copy."""
        return TensorHandle(self.data.copy(), self.dtype, dict(self.attr))

    def set_attr(self, key: str, value: Any) -> None:
        """Keep a promise made to the compiler."""
        self.attr[key] = value


# By name: hashing a type of Triton's takes longer than adding two small blocks.
_NUMPY: dict[str, np.dtype[Any]] = {
    "int1": np.dtype(np.bool_),
    **{name: np.dtype(name) for kind in ("int", "uint") for name in (f"{kind}{bits}" for bits in (8, 16, 32, 64))},
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
    "bf16": np.dtype(np.uint16),
    **dict.fromkeys(("fp8e5", "fp8e5b16", "fp8e4nv", "fp8e4b8", "fp8e4b15"), np.dtype(np.uint8)),
}

_EIGHT_BIT = {
    "fp8e5": torch.float8_e5m2,
    "fp8e5b16": torch.float8_e5m2fnuz,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e4b8": torch.float8_e4m3fnuz,
}

_BIT_FLOATS = frozenset({"bf16", "fp8e5", "fp8e5b16", "fp8e4nv", "fp8e4b8", "fp8e4b15"})


_POINTER = np.dtype(np.uint64)


def numpy_type(scalar: Any) -> np.dtype[Any]:
    """Return the numpy dtype that holds values of Triton's ``scalar`` type."""
    return _NUMPY.get(scalar.name, _POINTER)


def held_as_bits(scalar: Any) -> bool:
    """Say whether numpy has no such float, so that an array holds its bits."""
    return scalar.name in _BIT_FLOATS


def _eight_bit_type(name: str) -> torch.dtype:
    """Return torch's dtype for an 8-bit float.

    Raises:
        UnsupportedByEmulationError: for one that torch does not have.
    """
    found = _EIGHT_BIT.get(name)
    if found is None:
        raise UnsupportedByEmulationError(f"arithmetic on {name}")
    return found


@cache
def _eight_bit_values(name: str) -> Array:
    """Return all 256 values of an 8-bit float, in float32."""
    bits = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    values: Array = bits.view(_eight_bit_type(name)).float().numpy()
    return values


def as_numbers(data: Array, scalar: Any) -> Array:
    """Return ``data`` of Triton's type ``scalar`` as numbers that numpy computes with."""
    if scalar.name not in _BIT_FLOATS:
        return data
    if scalar.name == "bf16":
        return (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return _eight_bit_values(scalar.name)[data]


def from_numbers(data: Array, scalar: Any) -> Array:
    """Return floating ``data`` rounded to nearest even as Triton's floating type ``scalar``."""
    if scalar.name not in _BIT_FLOATS:
        return data.astype(_NUMPY[scalar.name], copy=False)
    if scalar.name == "bf16":
        return _bfloat16_bits(data.astype(np.float32, copy=False))
    rounded = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32)).to(_eight_bit_type(scalar.name))
    bits: Array = rounded.view(torch.uint8).numpy()
    return bits.reshape(data.shape)


def _bfloat16_bits(data: Array) -> Array:
    bits = np.ascontiguousarray(data).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    rounded = np.where(np.isnan(data), (bits >> np.uint32(16)) | np.uint32(0x0040), rounded)
    return rounded.astype(np.uint16).reshape(data.shape)


def convert(data: Array, source: Any, target: Any) -> Array:
    """Convert ``data`` from Triton's type ``source`` to ``target`` as a GPU's ``cvt`` does.

    Where the language leaves the result open (a float outside the integer type's range) this follows what PTX's
    ``cvt.rzi`` does: the nearest representable integer, and 0 for NaN (the smallest integer with 64 bits).
    """
    if source.name == target.name:
        return data
    if target.is_floating():
        return from_numbers(as_numbers(data, source), target) if source.is_floating() else _from_integers(data, target)
    if source.is_floating():
        return _to_integers(as_numbers(data, source), target)
    return data.astype(numpy_type(target))


def _from_integers(data: Array, target: Any) -> Array:
    return from_numbers(data.astype(np.float32), target) if held_as_bits(target) else data.astype(numpy_type(target))


def _to_integers(numbers: Array, target: Any) -> Array:
    if target.name == "int1":
        return np.not_equal(numbers, 0)
    narrow = numpy_type(target)
    wide: np.dtype[Any] = (
        np.dtype(np.int16 if target.is_int_signed() else np.uint16) if narrow.itemsize == 1 else narrow
    )
    limits = np.iinfo(wide)
    whole = np.trunc(numbers.astype(np.float64))
    inside = (whole >= float(limits.min)) & (whole < float(limits.max) + 1.0)
    result = np.where(inside, whole, 0).astype(wide)
    result = np.where(whole > float(limits.max), wide.type(limits.max), result)
    result = np.where(whole < float(limits.min), wide.type(limits.min), result)
    if wide.itemsize == 8:
        result = np.where(np.isnan(numbers), wide.type(1 << 63 if wide.kind == "u" else limits.min), result)
    return result.astype(narrow)


def rounded_to_tf32(data: Array) -> Array:
    """Round float32 ``data`` to the ten bits of mantissa that a tensor core reads of it."""
    bits = np.ascontiguousarray(data, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1)))) & np.uint32(0xFFFFE000)
    return np.asarray(np.where(np.isfinite(data), rounded, bits).view(np.float32))


def block(data: Array, scalar: Any) -> Any:
    """Return a ``tl.tensor`` of ``data``; an array of one axis with one element may not be a block, see ``scalar``."""
    return tl.core.tensor(TensorHandle(data, scalar), tl.block_type(scalar, list(data.shape)))


def scalar_value(data: Array, scalar: Any) -> Any:
    """Return a scalar ``tl.tensor``, which an interpreter holds as an array of one element."""
    return tl.core.tensor(TensorHandle(np.asarray(data).reshape(1), scalar), scalar)


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
