"""Loads, stores and pointers: every address is known by the argument it was computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import triton.language as tl

from pytest_regional.emulation.device import EmulationError
from pytest_regional.emulation.interpreter.segments import LaunchMemory, Segment
from pytest_regional.emulation.interpreter.values import (
    Array,
    TensorHandle,
    as_numbers,
    from_numbers,
    held_as_bits,
    numpy_type,
    spread,
)

_REGION = "region"


def pointer_to(region: Segment, address: int, pointer_type: Any) -> Any:
    """Return a scalar pointer that knows the argument it points into."""
    handle = TensorHandle(np.array([address], dtype=np.uint64), pointer_type, {_REGION: region})
    return tl.core.tensor(handle, pointer_type)


def region_of_pointer(handle: Any) -> Segment | None:
    """Return the argument that a pointer was computed from, if it is known."""
    found: Segment | None = handle.attr.get(_REGION)
    return found


def _element_type(handle: Any) -> Any:
    scalar = handle.get_element_ty()
    return tl.int8 if scalar == tl.int1 else scalar


class Accesses:
    """The ``create_*`` methods for loads, stores and everything that moves pointers."""

    memory: LaunchMemory
    patience: int = 0
    _fruitless: int = 0

    def pause(self) -> None:
        """Let other programs run, where programs of a launch take turns."""

    def progressed(self) -> None:
        """Start to count anew what :meth:`waited` counts."""
        self._fruitless = 0

    def waited(self, fruitless: bool) -> None:
        """Count operations in a row that a program may be waiting with: none of them changed memory.

        Raises:
            EmulationError: if they are so many that what is waited for cannot come.
        """
        self._fruitless = self._fruitless + 1 if fruitless else 0
        if self._fruitless > self.patience:
            raise EmulationError(
                f"{self.memory.kernel} waits for a change of memory that none of its programs makes: they wait for "
                f"each other forever, or do so outside a grid whose programs run together"
            )

    def create_load(self, ptr: Any, *policies: Any, **named: Any) -> Any:
        """Load without a mask."""
        self.memory.check_time()
        scalar = _element_type(ptr)
        self._wait_if_volatile(policies, named)
        return TensorHandle(self._read(ptr, ptr.data, numpy_type(scalar), "load"), scalar)

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *policies: Any, **named: Any) -> Any:
        """Load where ``mask`` holds; elsewhere the result is ``other``.

        Without one it is zero: Triton says that it is undefined, but the code that it generates for NVIDIA GPUs clears
        the registers first, and templates of PyTorch's rely on it (the backward of flex attention in 2.11 to 2.15).
        """
        self.memory.check_time()
        scalar = _element_type(ptrs)
        dtype = numpy_type(scalar)
        self._wait_if_volatile(policies, named)
        where = np.broadcast_to(mask.data, ptrs.data.shape)
        if where.all():
            return TensorHandle(self._read(ptrs, ptrs.data, dtype, "load"), scalar)
        result = np.zeros(ptrs.data.shape, dtype)
        if other is not None:
            result[...] = other.data
        if where.any():
            result[where] = self._read(ptrs, ptrs.data[where], dtype, "load")
        return TensorHandle(result, scalar)

    def create_store(self, ptr: Any, val: Any, *policies: Any, **named: Any) -> None:
        """Store without a mask."""
        self.memory.check_time()
        dtype = numpy_type(_element_type(ptr))
        self._write(ptr, ptr.data, _fitting(val.data, ptr.data, dtype), dtype)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *policies: Any, **named: Any) -> None:
        """Store where ``mask`` holds."""
        self.memory.check_time()
        dtype = numpy_type(_element_type(ptrs))
        values = _fitting(value.data, ptrs.data, dtype)
        where = np.broadcast_to(mask.data, ptrs.data.shape)
        if where.all():
            self._write(ptrs, ptrs.data, values, dtype)
        elif where.any():
            self._write(ptrs, ptrs.data[where], values[where], dtype)

    def _wait_if_volatile(self, policies: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Take the last of a load's policies for what it is: a loop around a volatile load may be waiting."""
        if named.get("is_volatile", policies[-1] if policies else False):
            self.pause()
            self.waited(fruitless=True)

    def _read(self, handle: Any, addresses: Array, dtype: np.dtype[Any], what: str) -> Array:
        region, indices = self.memory.locate(region_of_pointer(handle), addresses, dtype, what)
        self.memory.reading(region, indices, dtype)
        return region.elements(dtype)[indices]

    def _write(self, handle: Any, addresses: Array, values: Array, dtype: np.dtype[Any]) -> None:
        region, indices = self.memory.locate(region_of_pointer(handle), addresses, dtype, "store")
        self.memory.writing(region, indices, dtype)
        self.memory.check_single(region, indices, values)
        region.elements(dtype)[indices] = values
        self.progressed()

    def create_addptr(self, ptr: Any, offset: Any) -> Any:
        """Move a pointer by elements."""
        width = max(1, ptr.get_element_ty().primitive_bitwidth // 8)
        moved = ptr.data + np.uint64(width) * offset.data.astype(np.uint64)
        return TensorHandle(moved, ptr.dtype, ptr.attr)

    def create_bitcast(self, src: Any, dst_type: Any) -> Any:
        """Take the same bits for another type."""
        return TensorHandle(_same_bits(src.data, numpy_type(dst_type.scalar)), dst_type.scalar, src.attr)

    create_int_to_ptr = create_bitcast
    create_ptr_to_int = create_bitcast

    def create_expand_dims(self, arg: Any, axis: int) -> Any:
        """Insert an axis of length one."""
        return TensorHandle(np.expand_dims(arg.data, axis), arg.dtype.scalar, arg.attr)

    def create_broadcast(self, arg: Any, shape: Any) -> Any:
        """Repeat along axes of length one."""
        return TensorHandle(spread(arg.data, tuple(shape)), arg.dtype.scalar, arg.attr)

    def create_splat(self, ret_ty: Any, arg: Any) -> Any:
        """Repeat a scalar."""
        data = spread(arg.data.reshape(()), tuple(ret_ty.shape))
        return TensorHandle(data, arg.dtype.scalar, arg.attr)

    def create_unsplat(self, arg: Any) -> Any:
        """Return the only element of a block as a scalar."""
        return TensorHandle(arg.data.reshape(-1)[:1], arg.dtype.scalar, arg.attr)

    def create_reshape(self, arg: Any, shape: Any, allow_reorder: bool) -> Any:
        """Change the shape, in order."""
        return TensorHandle(arg.data.reshape(shape), arg.dtype.scalar, arg.attr)

    def create_trans(self, arg: Any, perm: Any) -> Any:
        """Permute axes."""
        return TensorHandle(np.transpose(arg.data, perm), arg.dtype.scalar, arg.attr)


def _same_bits(data: Array, dtype: np.dtype[Any]) -> Array:
    if data.dtype == dtype:
        return data
    if dtype == np.bool_ or data.dtype == np.bool_:
        return data.astype(dtype)
    return np.ascontiguousarray(data).view(dtype).reshape(data.shape)


def _fitting(values: Array, addresses: Array, dtype: np.dtype[Any]) -> Array:
    """Return ``values`` in the shape of ``addresses``, in ``dtype``."""
    return np.broadcast_to(values.astype(dtype, copy=False), addresses.shape)


Operation = Callable[[Array, Array], Array]


def _exchanged(old: Array, lanes: Array) -> Array:
    return lanes


def _swapped(old: Array, lanes: Array) -> Array:
    """Return the lanes' values where what was there is what they compare with."""
    return np.where(old == lanes["cmp"], lanes["val"], old)


_OPERATIONS: dict[str, Operation] = {
    "ADD": np.add,
    "FADD": np.add,
    "MAX": np.maximum,
    "UMAX": np.maximum,
    "MIN": np.minimum,
    "UMIN": np.minimum,
    "AND": np.bitwise_and,
    "OR": np.bitwise_or,
    "XOR": np.bitwise_xor,
    "XCHG": _exchanged,
}


class Atomics(Accesses):
    """The ``create_atomic_*`` methods."""

    def create_atomic_rmw(self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        """Read, modify and write every lane's element, lanes of one address in order; return what was read."""
        return self._update(ptr, mask.data, val.dtype.scalar, val.data, _OPERATIONS[rmwOp.name])

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        """Exchange every lane's element if it equals ``cmp``; return what was read."""
        scalar = val.dtype.scalar
        pairs = np.empty(
            np.broadcast(ptr.data, val.data).shape, dtype=[("cmp", val.data.dtype), ("val", val.data.dtype)]
        )
        pairs["cmp"], pairs["val"] = cmp.data, val.data

        return self._update(ptr, np.ones(1, dtype=np.bool_), scalar, pairs, _swapped)

    def create_atomic_load(self, ptr: Any, mask: Any, sem: Any, scope: Any) -> Any:
        """Load, letting other programs run first."""
        return self.create_masked_load(ptr, mask, None, is_volatile=True)

    def create_atomic_store(self, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> None:
        """Store."""
        self.create_masked_store(ptr, val, mask)

    def _update(self, ptr: Any, mask: Array, scalar: Any, lanes: Array, operation: Operation) -> Any:
        self.memory.check_time()
        self.pause()
        dtype = numpy_type(scalar)
        read = np.zeros(ptr.data.shape, dtype=dtype)
        where = np.broadcast_to(mask, ptr.data.shape)
        if where.any():
            region, indices = self.memory.locate(region_of_pointer(ptr), ptr.data[where], dtype, "atomic operation")
            self.memory.updating(region, indices, dtype, overwrites=operation is _exchanged)
            values = np.broadcast_to(lanes, ptr.data.shape)[where]
            read[where], changed = _in_order(region.elements(dtype), indices, values, scalar, operation)
            self.waited(fruitless=not changed)
        return TensorHandle(read, scalar)


def _in_order(elements: Array, indices: Array, lanes: Array, scalar: Any, operation: Operation) -> tuple[Array, bool]:
    """Update the elements, lanes that meet in their order; return what was read, and whether anything changed."""
    if indices.size == 1:
        return _in_turns(elements, indices, lanes, scalar, operation, [slice(None)])
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    if starts.size == indices.size:
        return _in_turns(elements, indices, lanes, scalar, operation, [slice(None)])
    lengths = np.diff(np.append(starts, indices.size))
    if isinstance(operation, np.ufunc) and not held_as_bits(scalar) and starts.size < lengths.max():
        return _address_by_address(elements, indices, lanes, operation, np.split(order, starts[1:]))
    rank = np.arange(indices.size) - np.repeat(starts, lengths)
    turns = np.split(order[np.argsort(rank, kind="stable")], np.cumsum(np.bincount(rank))[:-1])
    return _in_turns(elements, indices, lanes, scalar, operation, turns)


def _in_turns(
    elements: Array, indices: Array, lanes: Array, scalar: Any, operation: Operation, turns: Iterable[Any]
) -> tuple[Array, bool]:
    """Update by selections of lanes in each of which no two lanes meet."""
    read = np.empty(indices.shape, dtype=elements.dtype)
    changed = False
    for turn in turns:
        old = elements[indices[turn]]
        read[turn] = old
        new = elements[indices[turn]] = _updated(old, lanes[turn], scalar, operation)
        changed = changed or bool((old != new).any())
    return read, changed


def _address_by_address(
    elements: Array, indices: Array, lanes: Array, operation: np.ufunc, groups: Iterable[Array]
) -> tuple[Array, bool]:
    """Update by groups of lanes that all meet, in order; faster where many lanes share few addresses."""
    read = np.empty(indices.shape, dtype=elements.dtype)
    changed = False
    for group in groups:
        address = indices[group[0]]
        steps = np.concatenate([elements[address : address + 1], lanes[group]])
        values = operation.accumulate(steps, dtype=elements.dtype)
        read[group] = values[:-1]
        elements[address] = values[-1]
        changed = changed or bool(values[-1] != values[0])
    return read, changed


def _updated(old: Array, lanes: Array, scalar: Any, operation: Operation) -> Array:
    if not scalar.is_floating() or operation in (_exchanged, _swapped):
        return np.asarray(operation(old, lanes)).astype(old.dtype, copy=False)
    return from_numbers(np.asarray(operation(as_numbers(old, scalar), as_numbers(lanes, scalar))), scalar)
