"""The fake process group that PyTorch tests itself with."""

from __future__ import annotations

from typing import Any

from pytest_regional._torch import symbol


def fake_store() -> Any:
    """Return the store of the ``fake`` backend; importing its module registers the backend (2.11 to 2.15)."""
    return symbol("torch.testing._internal.distributed.fake_pg", "FakeStore")()
