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

from pytest_regional._torch.triton_language import tensor_handle_class

Array: TypeAlias = npt.NDArray[Any]

TensorHandle: Any = tensor_handle_class()

_NUMPY = {
    tl.int1: np.dtype(np.bool_),
    tl.int8: np.dtype(np.int8),
    tl.uint8: np.dtype(np.uint8),
    tl.int16: np.dtype(np.int16),
    tl.uint16: np.dtype(np.uint16),
    tl.int32: np.dtype(np.int32),
    tl.uint32: np.dtype(np.uint32),
    tl.int64: np.dtype(np.int64),
    tl.uint64: np.dtype(np.uint64),
    tl.float16: np.dtype(np.float16),
    tl.float32: np.dtype(np.float32),
    tl.float64: np.dtype(np.float64),
    tl.bfloat16: np.dtype(np.uint16),
    tl.float8e5: np.dtype(np.uint8),
    tl.float8e5b16: np.dtype(np.uint8),
    tl.float8e4nv: np.dtype(np.uint8),
    tl.float8e4b8: np.dtype(np.uint8),
    tl.float8e4b15: np.dtype(np.uint8),
}

_EIGHT_BIT = {
    tl.float8e5: torch.float8_e5m2,
    tl.float8e5b16: torch.float8_e5m2fnuz,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e4b8: torch.float8_e4m3fnuz,
}

_BIT_FLOATS = frozenset({tl.bfloat16, tl.float8e5, tl.float8e5b16, tl.float8e4nv, tl.float8e4b8, tl.float8e4b15})
_POINTER = np.dtype(np.uint64)


def numpy_type(scalar: Any) -> np.dtype[Any]:
    """Return the numpy dtype that holds values of Triton's ``scalar`` type."""
    return _POINTER if scalar.is_ptr() else _NUMPY[scalar]


def held_as_bits(scalar: Any) -> bool:
    """Say whether numpy has no such float, so that an array holds its bits."""
    return scalar in _BIT_FLOATS


@cache
def _eight_bit_values(scalar: Any) -> Array:
    """Return all 256 values of an 8-bit float, in float32."""
    bits = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    values: Array = bits.view(_EIGHT_BIT[scalar]).float().numpy()
    return values


def as_numbers(data: Array, scalar: Any) -> Array:
    """Return ``data`` of Triton's type ``scalar`` as numbers that numpy computes with."""
    if scalar == tl.bfloat16:
        return (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if scalar in _BIT_FLOATS:
        return _eight_bit_values(scalar)[data]
    return data


def from_numbers(data: Array, scalar: Any) -> Array:
    """Return floating ``data`` rounded to nearest even as Triton's floating type ``scalar``."""
    if scalar == tl.bfloat16:
        return _bfloat16_bits(data.astype(np.float32, copy=False))
    if scalar in _BIT_FLOATS:
        rounded = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32)).to(_EIGHT_BIT[scalar])
        bits: Array = rounded.view(torch.uint8).numpy()
        return bits.reshape(data.shape)
    return data.astype(_NUMPY[scalar], copy=False)


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
    if source == target:
        return data
    if target.is_floating():
        return from_numbers(as_numbers(data, source), target) if source.is_floating() else _from_integers(data, target)
    if source.is_floating():
        return _to_integers(as_numbers(data, source), target)
    return data.astype(numpy_type(target))


def _from_integers(data: Array, target: Any) -> Array:
    return from_numbers(data.astype(np.float32), target) if held_as_bits(target) else data.astype(_NUMPY[target])


def _to_integers(numbers: Array, target: Any) -> Array:
    if target == tl.int1:
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
