"""Atomic operations of any width, vectorised where no two lanes meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .accesses import Accesses, region_of_pointer
from .regions import Region
from .values import Array, TensorHandle, as_numbers, from_numbers, numpy_type

_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "ADD": np.add,
    "FADD": np.add,
    "MAX": np.maximum,
    "UMAX": np.maximum,
    "MIN": np.minimum,
    "UMIN": np.minimum,
    "AND": np.bitwise_and,
    "OR": np.bitwise_or,
    "XOR": np.bitwise_xor,
    "XCHG": lambda old, new: new,
}


class Atomics(Accesses):
    """The ``create_atomic_*`` methods."""

    def create_atomic_rmw(self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        """Read, modify and write every lane's element, lanes of one address in order; return what was read."""
        scalar = val.dtype.scalar
        operation = _OPERATIONS[rmwOp.name]

        def updated(old: Array, lanes: Array) -> Array:
            if not scalar.is_floating():
                return np.asarray(operation(old, lanes)).astype(old.dtype, copy=False)
            return from_numbers(np.asarray(operation(as_numbers(old, scalar), as_numbers(lanes, scalar))), scalar)

        return self._update(ptr, mask.data, scalar, val.data, updated)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        """Exchange every lane's element if it equals ``cmp``; return what was read."""
        scalar = val.dtype.scalar
        pairs = np.empty(
            np.broadcast(ptr.data, val.data).shape, dtype=[("cmp", val.data.dtype), ("val", val.data.dtype)]
        )
        pairs["cmp"], pairs["val"] = cmp.data, val.data

        def updated(old: Array, lanes: Array) -> Array:
            return np.where(old == lanes["cmp"], lanes["val"], old)

        return self._update(ptr, np.ones(1, dtype=np.bool_), scalar, pairs, updated)

    def create_atomic_load(self, ptr: Any, mask: Any, sem: Any, scope: Any) -> Any:
        """Load, letting other programs run first."""
        return self.create_masked_load(ptr, mask, None, is_volatile=True)

    def create_atomic_store(self, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> None:
        """Store."""
        self.create_masked_store(ptr, val, mask)

    def _update(
        self, ptr: Any, mask: Array, scalar: Any, lanes: Array, updated: Callable[[Array, Array], Array]
    ) -> Any:
        self.pause()
        dtype = numpy_type(scalar)
        read = np.zeros(ptr.data.shape, dtype=dtype)
        where = np.broadcast_to(mask, ptr.data.shape)
        if where.any():
            region, indices = self.memory.locate(region_of_pointer(ptr), ptr.data[where], dtype, "atomic operation")
            self.memory.updating(region, indices, dtype)
            values = np.broadcast_to(lanes, ptr.data.shape)[where]
            read[where], changed = _in_order(region, indices, values, dtype, updated)
            self.waited(fruitless=not changed)
        return TensorHandle(read, scalar)


def _in_order(
    region: Region, indices: Array, lanes: Array, dtype: np.dtype[Any], updated: Callable[[Array, Array], Array]
) -> tuple[Array, bool]:
    """Update the elements; return what was read, and whether any changed."""
    elements = region.elements(dtype)
    read = np.empty(indices.shape, dtype=dtype)
    changed = False
    for turn in _turns(indices):
        old = elements[indices[turn]]
        read[turn] = old
        new = elements[indices[turn]] = updated(old, lanes[turn])
        changed = changed or bool((old != new).any())
    return read, changed


def _turns(indices: Array) -> Iterator[Any]:
    """Yield selections of lanes such that no two lanes of one selection meet, and lanes that meet keep their order."""
    if indices.size == 1:
        yield slice(None)
        return
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    if first.all():
        yield slice(None)
        return
    starts = np.maximum.accumulate(np.where(first, np.arange(indices.size), 0))
    rank = np.arange(indices.size) - starts
    by_rank = np.argsort(rank, kind="stable")
    ends = np.cumsum(np.bincount(rank))
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        yield order[by_rank[begin:end]]
