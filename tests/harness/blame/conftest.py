"""Faults planted in Inductor, and shorter searches."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.lowering import lowerings


@pytest.fixture
def wrong_sine(monkeypatch):
    """Make Inductor compute the sine of a number as its cosine."""
    for overload in (torch.ops.aten.sin.default, torch.ops.aten.sin):
        monkeypatch.setitem(lowerings, overload, lowerings[torch.ops.aten.cos.default])


def multiply_in_the_wrong_order(monkeypatch):
    """Make Inductor compute ``y @ x`` for ``x @ y``, which costs no C++ compile: a library has the kernel."""
    for overload in (torch.ops.aten.mm.default, torch.ops.aten.mm):
        right = lowerings[overload]
        monkeypatch.setitem(lowerings, overload, lambda x, y, right=right: right(y, x))


@pytest.fixture
def wrong_product(monkeypatch):
    """Make Inductor compute ``y @ x`` for ``x @ y``."""
    multiply_in_the_wrong_order(monkeypatch)


def repeat_less(monkeypatch):
    """Have a search make each deciding experiment twice, not four times: ``test_layers`` has searches with repeats."""
    for name in ("_COMES", "_GONE"):
        monkeypatch.setattr(f"pytest_regional.harness.blame.layers.{name}", 2)


@pytest.fixture
def few_repeats(monkeypatch):
    """Have a search make each deciding experiment twice."""
    repeat_less(monkeypatch)
