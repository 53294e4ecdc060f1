"""GPU code on a machine without a GPU: Inductor generates Triton for a described device, kernels are interpreted."""

from .errors import EmulationError, KernelAssertionError, MemoryFaultError, UnsupportedByEmulationError

__all__ = ["EmulationError", "KernelAssertionError", "MemoryFaultError", "UnsupportedByEmulationError"]
