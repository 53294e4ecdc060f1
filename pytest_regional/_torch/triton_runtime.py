"""Where Triton finds its driver and starts kernels, so that a machine without a GPU can have both."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from pytest_regional._torch import symbol


def jit_function() -> type:
    """``triton.runtime.jit.JITFunction``: what ``@triton.jit`` makes (triton 3.6 to 3.9)."""
    cls: type = symbol("triton.runtime.jit", "JITFunction")
    return cls


def autotuner() -> type:
    """``triton.runtime.autotuner.Autotuner``: what ``@triton.autotune`` makes (triton 3.6 to 3.9)."""
    cls: type = symbol("triton.runtime.autotuner", "Autotuner")
    return cls


@contextlib.contextmanager
def replaced_method(cls: type, name: str, replacement: Callable[[Any], Any]) -> Iterator[None]:
    """Put ``replacement(original)`` in place of a method of ``cls`` itself.

    Raises:
        MissingTorchSymbolError: there is no such method.
    """
    original = symbol(cls.__module__, f"{cls.__qualname__}.{name}")
    setattr(cls, name, replacement(original))
    try:
        yield
    finally:
        setattr(cls, name, original)


@contextlib.contextmanager
def active_driver(driver: Any) -> Iterator[None]:
    """Make ``driver`` the one that Triton asks for its target.

    ``triton.runtime.driver.driver``, whose ``_active`` is the driver in use and None before the first (3.6 to 3.9).
    """
    holder = symbol("triton.runtime.driver", "driver")
    before = holder._active
    holder.set_active(driver)
    try:
        yield
    finally:
        holder._active = before


def cuda_target(compute_capability: int) -> Any:
    """``triton.backends.compiler.GPUTarget`` of an NVIDIA GPU, 90 for 9.0 (triton 3.6 to 3.9)."""
    return symbol("triton.backends.compiler", "GPUTarget")("cuda", compute_capability, 32)
