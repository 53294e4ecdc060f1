"""Loads, stores and atomic operations, and the memory of one launch: bounds, unwritten bytes, races."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton.language as tl

from pytest_regional._base.errors import OutOfTimeError
from pytest_regional.emulation.device import EmulationError, MemoryFaultError
from pytest_regional.emulation.interpreter.values import (
    Array,
    TensorHandle,
    as_numbers,
    from_numbers,
    held_as_bits,
    numpy_type,
    spread,
)
from pytest_regional.emulation.memory import Allocation, Memory

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


_NOBODY = -1
_SEVERAL = -2


class AccessLog:
    """Which program read and wrote which byte, kept while races between programs are looked for."""

    def __init__(self, nbytes: int) -> None:
        self.readers = np.full(nbytes, _NOBODY, dtype=np.int64)
        self.writers = np.full(nbytes, _NOBODY, dtype=np.int64)


@dataclass(eq=False)
class Segment:
    """The storage of a tensor argument."""

    argument: str
    start: int
    content: Array
    allocation: Allocation | None
    footprints: AccessLog | None = None
    typed: dict[np.dtype[Any], Array] = field(default_factory=dict)

    def elements(self, dtype: np.dtype[Any]) -> Array:
        """Return the storage as an array of ``dtype``."""
        found = self.typed.get(dtype)
        if found is None:
            usable = self.content.size // dtype.itemsize * dtype.itemsize
            found = self.typed[dtype] = self.content[:usable].view(dtype)
        return found


def region_of(argument: str, tensor: torch.Tensor, memory: Memory, races: bool) -> Segment:
    """Return the region of the storage of ``tensor``."""
    storage = tensor.untyped_storage()
    content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    footprints = AccessLog(content.size) if races else None
    return Segment(argument, storage.data_ptr(), content, memory.allocation_of(tensor), footprints)


class LaunchMemory:
    """The regions that a launch may touch, until ``deadline`` on the clock of processor time."""

    def __init__(self, kernel: str, regions: Sequence[Segment], deadline: float = math.inf) -> None:
        self.kernel = kernel
        self.regions = list(regions)
        self.deadline = deadline
        self.program = (0, 0, 0)

    def check_time(self) -> None:
        """Check that there is time for one more access.

        Raises:
            OutOfTimeError: there is none.
        """
        if self.deadline < math.inf and time.process_time() > self.deadline:
            raise OutOfTimeError(f"{self.kernel}, program {self.program}: out of time")

    def locate(
        self, region: Segment | None, addresses: Array, dtype: np.dtype[Any], what: str
    ) -> tuple[Segment, Array]:
        """Return the region that ``addresses`` lie in and their indices among its elements of ``dtype``.

        ``region`` is the argument they were computed from; only where that is not known (an address that was stored
        or turned into an integer) may they lie in any.

        Raises:
            MemoryFaultError: for an address outside, or one that is not a multiple of the element's size.
        """
        who = f"{self.kernel}, program {self.program},"
        if region is None:
            first = int(addresses.flat[0])
            if not self.regions:
                raise MemoryFaultError(f"{who} has no tensor argument and makes a {what} at {first:#x}")
            region = self._holding(first)
        offsets = addresses.astype(np.int64) - region.start
        size, width = region.content.size, dtype.itemsize
        if offsets.min() < 0 or offsets.max() > size - width:
            wrong = offsets[(offsets < 0) | (offsets > size - width)]
            raise MemoryFaultError(
                f"out-of-bounds {what}: {who} makes {wrong.size} of {offsets.size} accesses outside argument "
                f"{region.argument}, the first at element {int(wrong.flat[0]) // width} of its {size // width} "
                f"elements of {width} bytes. Look at the mask and at the index expression of this {what}."
            )
        if width > 1 and (addresses % np.uint64(width)).any():
            raise MemoryFaultError(
                f"misaligned {what}: {who} accesses argument {region.argument} at an address that is no multiple of "
                f"{width}; a GPU stops on that"
            )
        return region, offsets // width if width > 1 else offsets

    def _holding(self, address: int) -> Segment:
        """Return the region that ``address`` lies in, or the nearest."""
        for region in self.regions:
            if region.start <= address < region.start + region.content.size:
                return region
        return min(self.regions, key=lambda r: min(abs(address - r.start), abs(address - r.start - r.content.size)))

    def reading(self, region: Segment, indices: Array, dtype: np.dtype[Any]) -> None:
        """Check that the elements about to be read have been written.

        Raises:
            MemoryFaultError: naming argument, element and program.
        """
        found = region.allocation
        if found is not None and found.written is not None:
            found.settle()
            if found.written is not None:
                flags = _flags(found, found.written, indices, dtype)
                if not flags.all():
                    missing = indices[~flags]
                    raise MemoryFaultError(
                        f"{self.kernel}, program {self.program}, loads memory that nobody has written: {missing.size} "
                        f"elements of argument {region.argument}, the first is element {int(missing.flat[0])} of its "
                        f"{region.content.size // dtype.itemsize}. Whatever should have written it was left out, came "
                        f"later, or wrote elsewhere."
                    )
        if region.footprints is not None:
            self._note_reads(region, region.footprints, indices * dtype.itemsize)

    def writing(self, region: Segment, indices: Array, dtype: np.dtype[Any]) -> None:
        """Remember the elements about to be written."""
        found = region.allocation
        if found is not None and found.written is not None:
            _mark(found, found.written, indices, dtype)
        if region.footprints is not None:
            self._note_writes(region, region.footprints, indices * dtype.itemsize)

    def check_single(self, region: Segment, indices: Array, values: Array) -> None:
        """While races are looked for: check that no element is given two values at once.

        Raises:
            MemoryFaultError: naming argument, element and program.
        """
        if region.footprints is None or indices.size < 2:
            return
        order = np.argsort(indices, axis=None, kind="stable")
        places = indices.reshape(-1)[order]
        bits = np.broadcast_to(values, indices.shape).reshape(-1)[order]
        bits = bits.view(np.uint8).reshape(places.size, -1)
        twice = (places[1:] == places[:-1]) & (bits[1:] != bits[:-1]).any(axis=1)
        if twice.any():
            raise MemoryFaultError(
                f"race in {self.kernel}: program {self.program} writes several values to element "
                f"{int(places[1:][twice][0])} of argument {region.argument} at once; which of them stays is open"
            )

    def updating(self, region: Segment, indices: Array, dtype: np.dtype[Any], *, overwrites: bool) -> None:
        """Check the elements that an atomic operation is about to read and write; order between programs is free.

        One that ``overwrites`` them whatever they are may be the first to write them.
        """
        footprints, region.footprints = region.footprints, None
        try:
            (self.writing if overwrites else self.reading)(region, indices, dtype)
        finally:
            region.footprints = footprints

    def _number(self) -> int:
        x, y, z = self.program
        return x + (y << 31) + (z << 47)

    def _note_reads(self, region: Segment, footprints: AccessLog, offsets: Array) -> None:
        own = self._number()
        writers = footprints.writers[offsets]
        if ((writers != _NOBODY) & (writers != own)).any():
            raise self._race(region, "reads what another program wrote")
        readers = footprints.readers[offsets]
        footprints.readers[offsets] = np.where((readers == _NOBODY) | (readers == own), own, _SEVERAL)

    def _note_writes(self, region: Segment, footprints: AccessLog, offsets: Array) -> None:
        own = self._number()
        for others, did in ((footprints.writers[offsets], "wrote"), (footprints.readers[offsets], "read")):
            if ((others != _NOBODY) & (others != own)).any():
                raise self._race(region, f"writes what another program {did}")
        footprints.writers[offsets] = own

    def _race(self, region: Segment, did: str) -> MemoryFaultError:
        return MemoryFaultError(
            f"race in {self.kernel}: program {self.program} {did} in argument {region.argument}; "
            f"programs of one launch run in any order"
        )


def _flags(found: Allocation, written: Array, indices: Array, dtype: np.dtype[Any]) -> Array:
    """Say for each element of ``dtype`` whether it is written, whatever the buffer's own elements are."""
    if dtype.itemsize == found.granule:
        return written[indices]
    first = indices * dtype.itemsize // found.granule
    covered = max(1, dtype.itemsize // found.granule)
    flags: Array = np.logical_and.reduce([written[first + i] for i in range(covered)])
    return flags


def _mark(found: Allocation, written: Array, indices: Array, dtype: np.dtype[Any]) -> None:
    first = indices if dtype.itemsize == found.granule else indices * dtype.itemsize // found.granule
    for i in range(max(1, dtype.itemsize // found.granule)):
        written[first + i] = True
