"""A fault planted in Inductor."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.lowering import lowerings


@pytest.fixture
def wrong_sine(monkeypatch):
    """Make Inductor compute the sine of a number as its cosine."""
    for overload in (torch.ops.aten.sin.default, torch.ops.aten.sin):
        monkeypatch.setitem(lowerings, overload, lowerings[torch.ops.aten.cos.default])
