"""What goes wrong with emulated GPU code, by kind."""

from __future__ import annotations


class EmulationError(RuntimeError):
    """Emulated GPU code misbehaved, or cannot be emulated with what is installed."""


class UnsupportedByEmulationError(EmulationError, NotImplementedError):
    """Something that the emulation does not do, named; it is neither a pass nor a failure of what is tested."""


class MemoryFaultError(EmulationError):
    """A kernel read or wrote outside its tensors, read memory that nobody wrote, or got an argument it cannot take."""


class KernelAssertionError(EmulationError, AssertionError):
    """A ``device_assert`` in a kernel failed, such as Inductor's check of an indirect index."""
