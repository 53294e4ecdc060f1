"""Buffers of emulated GPU code: guarded on both sides, filled with poison, remembered as not written."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pytest_regional.emulation.device import MemoryFaultError

_REDZONE = 256
_ALIGNMENT = 64
_GUARD = 0xAB

Bytes = npt.NDArray[np.uint8]


@dataclass
class Allocation:
    """One buffer: where it lies, and which of its elements (of ``granule`` bytes) somebody has written.

    ``written`` is None once all are: most buffers are filled by one kernel, and what reads them need not look.
    """

    start: int
    nbytes: int
    granule: int
    whole: weakref.ReferenceType[Bytes]
    written: npt.NDArray[np.bool_] | None
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def settle(self) -> None:
        """Forget who wrote what if everything is written."""
        if self.written is not None and self.written.all():
            self.written = None

    def guards_intact(self) -> bool:
        """Say whether nobody wrote beside the buffer."""
        whole = self.whole()
        if whole is None:
            return True
        before = self.start - whole.ctypes.data
        return bool((whole[:before] == _GUARD).all() and (whole[before + self.nbytes :] == _GUARD).all())


class Memory:
    """The buffers of one emulated device; it keeps none of them alive.

    Attributes:
        deadline: when kernels have to be done with it, on the clock of processor time.
    """

    def __init__(self) -> None:
        self.deadline = math.inf
        self._allocations: dict[int, Allocation] = {}
        self._undefined = threading.local()

    @contextlib.contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """Let kernels that are launched inside run until then."""
        before, self.deadline = self.deadline, deadline
        try:
            yield
        finally:
            self.deadline = before

    @contextlib.contextmanager
    def undefined_allowed(self, allowed: bool = True) -> Iterator[None]:
        """Let what is allocated inside be read before it is written: poison then is all that tells of it."""
        before = getattr(self._undefined, "allowed", False)
        self._undefined.allowed = allowed
        try:
            yield
        finally:
            self._undefined.allowed = before

    def allocate(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a CPU tensor as ``empty_strided`` would, its storage surrounded by redzones and full of poison.

        Floats are NaN, integers 0xA5 in every byte, bools True.
        """
        nbytes = _span(size, stride) * dtype.itemsize
        whole, interior = _guarded(nbytes, _poison(dtype))
        tensor = torch.empty(0, dtype=dtype)
        tensor.set_(torch.from_numpy(interior).untyped_storage(), 0, tuple(size), tuple(stride))
        if nbytes:
            start = interior.ctypes.data
            dies = weakref.ref(whole, lambda _: self._allocations.pop(start, None))
            tracked = not getattr(self._undefined, "allowed", False)
            written = np.zeros(nbytes // dtype.itemsize, dtype=np.bool_) if tracked else None
            self._allocations[start] = Allocation(start, nbytes, dtype.itemsize, dies, written)
        return tensor

    def allocation_of(self, tensor: torch.Tensor) -> Allocation | None:
        """Return the record of the buffer ``tensor`` lies in, or None if it was not allocated here."""
        return self._allocations.get(tensor.untyped_storage().data_ptr())

    def mark_written(self, tensor: torch.Tensor) -> None:
        """Remember that an extern kernel wrote every element of ``tensor``."""
        found = self.allocation_of(tensor)
        if found is not None and found.written is not None:
            _elements(found, tensor)[...] = True
            found.settle()

    def check_initialised(self, tensor: torch.Tensor, by: str) -> None:
        """Raise if ``tensor``, which ``by`` is about to read, has an element that nobody has written.

        Raises:
            MemoryFaultError: with the number of such elements and the index of the first.
        """
        found = self.allocation_of(tensor)
        if found is None or found.written is None:
            return
        missing = ~_elements(found, tensor)
        if missing.any():
            first = tuple(int(i) for i in np.argwhere(missing)[0])
            raise MemoryFaultError(
                f"{by} reads memory that nobody has written: {int(missing.sum())} of {missing.size} elements of a "
                f"buffer of shape {tuple(tensor.shape)} and {tensor.dtype}, the first at index {first}. Whatever "
                f"should have written them was left out, came later, or wrote elsewhere."
            )
        found.settle()


def _span(size: Sequence[int], stride: Sequence[int]) -> int:
    if any(length == 0 for length in size):
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))


def _poison(dtype: torch.dtype) -> int:
    """Return a byte that makes True, NaN, or a large integer."""
    if dtype == torch.bool:
        return 1
    if dtype in (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):
        return 0x80  # where others have the negative zero
    return 0xFF if dtype.is_floating_point or dtype.is_complex else 0xA5


def _guarded(nbytes: int, poison: int) -> tuple[Bytes, Bytes]:
    """Return an array and the part of it between its redzones; the part's address is a multiple of 64."""
    whole = np.full(nbytes + 2 * _REDZONE + _ALIGNMENT, _GUARD, dtype=np.uint8)
    first = _REDZONE + (-(whole.ctypes.data + _REDZONE)) % _ALIGNMENT
    interior = whole[first : first + nbytes]
    interior[...] = poison
    return whole, interior


def _elements(found: Allocation, tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return those flags of ``found.written`` that stand for the elements of ``tensor``, in its shape, as a view.

    Elements wider than the buffer's own have several, along one more axis; of narrower ones several share one.

    Raises:
        MemoryFaultError: it reaches beyond the buffer.
    """
    assert found.written is not None
    width = tensor.element_size()
    end = (tensor.storage_offset() + _span(tensor.shape, tensor.stride())) * width
    if end > found.nbytes and tensor.numel():
        raise MemoryFaultError(
            f"a tensor of shape {tuple(tensor.shape)}, strides {tensor.stride()} and {tensor.dtype} at element "
            f"{tensor.storage_offset()} ends {end - found.nbytes} bytes beyond its buffer of {found.nbytes} bytes"
        )
    offset = tensor.storage_offset() * width // found.granule
    steps = tuple(step * width for step in tensor.stride())
    if all(step % found.granule == 0 for step in steps):
        covered = max(1, width // found.granule)
        inside = tuple(step // found.granule for step in steps)
        # The last axis is the flags that one element covers.
        flags = np.lib.stride_tricks.as_strided(found.written[offset:], (*tensor.shape, covered), (*inside, 1))
        return flags[..., 0] if covered == 1 else flags
    return found.written[offset : offset + -(-_span(tensor.shape, tensor.stride()) * width // found.granule)]
