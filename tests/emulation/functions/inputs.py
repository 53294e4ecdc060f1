"""Inputs of the coverage table: short names for tensors drawn from the seeded generator."""

from __future__ import annotations

from collections.abc import Callable

import torch

Inputs = Callable[[], tuple[torch.Tensor, ...]]


def normal(*sizes: tuple[int, ...] | int) -> Inputs:
    """Return a drawer of one standard normal tensor for each size."""
    return lambda: tuple(torch.randn(size) for size in sizes)


def uniform(*sizes: tuple[int, ...], low: float = 0.0, high: float = 1.0) -> Inputs:
    """Return a drawer of tensors uniform between ``low`` and ``high``."""
    return lambda: tuple(torch.rand(size) * (high - low) + low for size in sizes)


def integers(low: int, high: int, *sizes: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Inputs:
    """Return a drawer of integer tensors, ``high`` excluded."""
    return lambda: tuple(torch.randint(low, high, size).to(dtype) for size in sizes)


def distinct(*size: int) -> torch.Tensor:
    """Return a tensor whose elements differ from each other also in bfloat16, in random order, along the last axis."""
    rows = torch.arange(size[-1]).sub(size[-1] // 2).div(8).expand(size)
    return rows.gather(-1, torch.rand(size).argsort(-1))


def joined(*drawers: Inputs) -> Inputs:
    """Return a drawer of what several draw, in turn."""
    return lambda: tuple(tensor for drawer in drawers for tensor in drawer())


SQUARE: Inputs = normal((64, 96))
PAIR: Inputs = normal((64, 96), (64, 96))
