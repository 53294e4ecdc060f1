"""The memory of one launch: the storages of its tensor arguments, and the checks on every access to them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pytest_regional.emulation.device import EmulationTimeoutError, MemoryFaultError
from pytest_regional.emulation.interpreter.values import Array
from pytest_regional.emulation.memory import Allocation, Memory

_NOBODY = -1
_SEVERAL = -2


@dataclass
class AccessLog:
    """Which program read and wrote which byte, kept while races between programs are looked for."""

    readers: Array
    writers: Array

    @classmethod
    def of(cls, nbytes: int) -> AccessLog:
        """Return empty footprints for ``nbytes``."""
        return cls(np.full(nbytes, _NOBODY, dtype=np.int64), np.full(nbytes, _NOBODY, dtype=np.int64))


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
    footprints = AccessLog.of(content.size) if races else None
    return Segment(argument, storage.data_ptr(), content, memory.allocation_of(tensor), footprints)


@dataclass
class Access:
    """One access to memory by one program: which addresses, how wide, for what."""

    kernel: str
    program: tuple[int, int, int]
    what: str
    addresses: Array
    dtype: np.dtype[Any]


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
            EmulationTimeoutError: there is none.
        """
        if self.deadline < math.inf and time.process_time() > self.deadline:
            raise EmulationTimeoutError(f"{self.kernel}, program {self.program}: out of time")

    def locate(
        self, region: Segment | None, addresses: Array, dtype: np.dtype[Any], what: str
    ) -> tuple[Segment, Array]:
        """Return the region that ``addresses`` lie in and their indices among its elements of ``dtype``.

        ``region`` is the argument they were computed from; only where that is not known (an address that was stored
        or turned into an integer) may they lie in any.

        Raises:
            MemoryFaultError: for an address outside, or one that is not a multiple of the element's size.
        """
        access = Access(self.kernel, self.program, what, addresses, dtype)
        if region is None:
            region = self._holding(access)
        offsets = addresses.astype(np.int64) - region.start
        last = region.content.size - dtype.itemsize
        if offsets.min() < 0 or offsets.max() > last:
            raise _outside(access, region, offsets)
        if dtype.itemsize > 1 and (addresses % np.uint64(dtype.itemsize)).any():
            raise _misaligned(access, region)
        return region, offsets // dtype.itemsize if dtype.itemsize > 1 else offsets

    def _holding(self, access: Access) -> Segment:
        first = int(access.addresses.flat[0])
        for region in self.regions:
            if region.start <= first < region.start + region.content.size:
                return region
        if not self.regions:
            raise MemoryFaultError(f"{_who(access)} has no tensor argument and makes a {access.what} at {first:#x}")
        return min(self.regions, key=lambda r: min(abs(first - r.start), abs(first - r.start - r.content.size)))

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
                    raise self._unwritten(region, indices, flags, dtype)
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

    def _unwritten(self, region: Segment, indices: Array, flags: Array, dtype: np.dtype[Any]) -> MemoryFaultError:
        missing = indices[~flags]
        return MemoryFaultError(
            f"{self.kernel}, program {self.program}, loads memory that nobody has written: {missing.size} elements of "
            f"argument {region.argument}, the first is element {int(missing.flat[0])} of its "
            f"{region.content.size // dtype.itemsize}. Whatever should have written it was left out, came later, or "
            f"wrote elsewhere."
        )

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


def _who(access: Access) -> str:
    return f"{access.kernel}, program {access.program},"


def _outside(access: Access, region: Segment, offsets: Array) -> MemoryFaultError:
    size, width = region.content.size, access.dtype.itemsize
    wrong = offsets[(offsets < 0) | (offsets > size - width)]
    worst = int(wrong.flat[0])
    return MemoryFaultError(
        f"out-of-bounds {access.what}: {_who(access)} makes {wrong.size} of {offsets.size} accesses outside argument "
        f"{region.argument}, the first at element {worst // width} of its {size // width} elements of {width} bytes. "
        f"Look at the mask and at the index expression of this {access.what}."
    )


def _misaligned(access: Access, region: Segment) -> MemoryFaultError:
    return MemoryFaultError(
        f"misaligned {access.what}: {_who(access)} accesses argument {region.argument} at an address that is no "
        f"multiple of {access.dtype.itemsize}; a GPU stops on that"
    )
