"""When AOTAutograd lowers the backward graph."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from pytest_regional._torch import symbol


def backward_lowered_at_once() -> AbstractContextManager[Any]:
    """Lower the backward together with the forward, not at the first ``backward()``.

    ``torch._functorch.config.force_non_lazy_backward_lowering`` (2.11 to 2.15).
    """
    manager: AbstractContextManager[Any] = symbol("torch._functorch.config", "patch")(
        force_non_lazy_backward_lowering=True
    )
    return manager
