"""Reductions and scans of any combine function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton.language as tl

from pytest_regional._torch.triton import inductor_helpers
from pytest_regional.emulation.interpreter.values import Array, block, held_as_bits, scalar_value

_OF_TRITON = {"_sum_combine": np.add, "_elementwise_max": np.fmax, "_elementwise_min": np.fmin}
_OF_INDUCTOR = {"maximum": np.maximum, "minimum": np.minimum, "_prod_accumulate": np.multiply}


def _ufunc(combine_fn: Any) -> Any:
    """Return numpy's function for a combine function of Triton's library or of Inductor's helpers, or None.

    They are compared by identity: a jitted function's hash is that of its text and of all it calls.
    """
    for library, table in ((tl.standard, _OF_TRITON), (inductor_helpers(), _OF_INDUCTOR)):
        found = table.get(combine_fn.__name__)
        if found is not None and getattr(library, combine_fn.__name__, None) is combine_fn:
            return found
    return None


def _value(constant: Any) -> Any:
    return constant.value if isinstance(constant, tl.constexpr) else constant


class Reductions:
    """What ``tl.reduce`` and ``tl.associative_scan`` do."""

    def reduce(self, operand: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:
        """Combine along ``axis`` (None: all elements) pair by pair, as a tree."""
        axis, keep_dims = _value(axis), _value(keep_dims)
        operands = _as_tuple(operand)
        shape = operands[0].handle.data.shape
        arrays = [item.handle.data.reshape(-1) if axis is None else item.handle.data for item in operands]
        along = 0 if axis is None else axis % len(shape)
        results = _reduced(combine_fn, operands, [np.moveaxis(array, along, 0) for array in arrays])
        if keep_dims:
            results = [r.reshape((1,) * len(shape)) if axis is None else np.expand_dims(r, along) for r in results]
        return _like(operand, [_tensor(r, item.dtype) for r, item in zip(results, operands, strict=True)])

    def scan(self, operand: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any) -> Any:
        """Combine every element with those before it, in steps that double."""
        axis, reverse = _value(axis), _value(reverse)
        operands = _as_tuple(operand)
        types = [item.dtype for item in operands]
        arrays = [_turned(np.moveaxis(item.handle.data, axis, 0), reverse) for item in operands]
        step = 1
        while step < arrays[0].shape[0]:
            # Whole blocks are combined, since a block's length is a power of two; the first elements are thrown away.
            combined = _combined(combine_fn, types, [np.roll(a, step, 0) for a in arrays], arrays)
            arrays = [np.concatenate([a[:step], c[step:]]) for a, c in zip(arrays, combined, strict=True)]
            step *= 2
        results = [np.moveaxis(_turned(array, reverse), 0, axis) for array in arrays]
        return _like(operand, [_tensor(r, item.dtype) for r, item in zip(results, operands, strict=True)])


def _reduced(combine_fn: Any, operands: Sequence[Any], arrays: list[Array]) -> list[Array]:
    ufunc = _ufunc(combine_fn)
    dtype = operands[0].dtype
    if ufunc is not None and len(arrays) == 1 and not held_as_bits(dtype) and dtype != tl.int1:
        return [np.asarray(ufunc.reduce(arrays[0], axis=0, dtype=arrays[0].dtype))]
    types = [item.dtype for item in operands]
    while (length := arrays[0].shape[0]) > 1:
        half = length // 2
        lower, upper, rest = ([a[part] for a in arrays] for part in _parts(half))
        combined = _combined(combine_fn, types, lower, upper)
        arrays = [np.concatenate([c, r]) if length % 2 else c for c, r in zip(combined, rest, strict=True)]
    return [array[0] for array in arrays]


def _parts(half: int) -> tuple[slice, slice, slice]:
    return slice(None, half), slice(half, 2 * half), slice(2 * half, None)


def _turned(array: Array, reverse: bool) -> Array:
    return array[::-1] if reverse else array


def _combined(combine_fn: Any, types: Sequence[Any], left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
    wrapped = [block(a, t) for a, t in zip((*left, *right), (*types, *types), strict=True)]
    results = _as_tuple(combine_fn(*wrapped))
    return [_handle_data(r, like) for r, like in zip(results, left, strict=True)]


def _handle_data(result: Any, like: Array) -> Array:
    data = result.handle.data if isinstance(result, tl.core.tensor) else np.asarray(result)
    return np.broadcast_to(data.astype(like.dtype, copy=False), like.shape)


def _tensor(array: Array, scalar: Any) -> Any:
    return block(array, scalar.scalar) if array.ndim else scalar_value(array, scalar.scalar)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, tl.core.tuple)) else (value,)


def _like(operand: Any, results: list[Any]) -> Any:
    return tuple(results) if isinstance(operand, (tuple, tl.core.tuple)) else results[0]
