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

from pytest_regional.emulation.errors import UnsupportedByEmulationError

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
# Their only NaN is what would be the negative zero.
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
