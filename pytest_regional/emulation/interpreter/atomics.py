"""Atomic operations of any width, vectorised where no two lanes meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pytest_regional.emulation.interpreter.accesses import Accesses, region_of_pointer
from pytest_regional.emulation.interpreter.values import (
    Array,
    TensorHandle,
    as_numbers,
    from_numbers,
    held_as_bits,
    numpy_type,
)

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
