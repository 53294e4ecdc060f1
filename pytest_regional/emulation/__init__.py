"""GPU code on a machine without a GPU: Inductor generates Triton for a described device, kernels are interpreted.

* ``device``: ``DeviceProfile`` describes a GPU, and all errors; needs neither torch nor triton.
* ``device_mock`` makes PyTorch see it, ``device_rewrite`` moves a graph to it, ``backend``: ``emulated`` does both.
* ``launch``, ``interpreter``, ``memory``: kernels run on numpy arrays; ``selftest``: whether all of it works here.
* ``compile_check``: kernels compiled for GPUs that are not here.

Names are imported when first used. May import: ``_torch``, ``_base``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_regional.emulation.backend import EmulatedKernel, Emulation, GeneratedGraph, active, emulated
    from pytest_regional.emulation.device import (
        PROFILES,
        DeviceProfile,
        EmulationError,
        KernelAssertionError,
        MemoryFaultError,
        UnsupportedByEmulationError,
        profile_named,
    )

__all__ = [
    "PROFILES",
    "DeviceProfile",
    "EmulatedKernel",
    "Emulation",
    "EmulationError",
    "GeneratedGraph",
    "KernelAssertionError",
    "MemoryFaultError",
    "RegionalValueError",
    "UnsupportedByEmulationError",
    "active",
    "emulated",
    "profile_named",
]

_MODULES = {
    "backend": ("EmulatedKernel", "Emulation", "GeneratedGraph", "active", "emulated"),
    "device": (
        "PROFILES",
        "DeviceProfile",
        "EmulationError",
        "KernelAssertionError",
        "MemoryFaultError",
        "RegionalValueError",
        "UnsupportedByEmulationError",
        "profile_named",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import ``name`` from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
