"""One kernel on CPU tensors, for tests of single operations."""

from typing import Any

import torch

from pytest_regional.emulation.launch import Launch, launch_kernel
from pytest_regional.emulation.memory import Memory


def run(kernel: Any, grid: tuple[int, ...] = (1,), *, together: bool | None = None, **arguments: Any) -> Launch:
    """Launch ``kernel`` in a memory of its own."""
    return launch_kernel(kernel, grid, arguments, memory=Memory(), together=together)


def outputs(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return tensors to be written to."""
    return [torch.zeros(shape, dtype=dtype) for shape in shapes]
