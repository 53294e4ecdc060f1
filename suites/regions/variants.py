"""Backends under test with options of their own: the partitioner, what happens when a region does not compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def wants_gradient(regional: Any) -> bool:
    """Return whether inputs are to want gradients; without them values are compared all the same."""
    return bool(regional.supports("backward"))


def variant(regional: Any, option: str, value: str) -> Callable[..., Any]:
    """Return the backend under test, as Dynamo calls it, with ``option``; skip where it has no such option."""
    if option not in regional.spec.variants:
        pytest.skip(f"the BackendSpec of {regional.backend!r} has no variant {option!r}")
    made: Callable[..., Any] = regional.spec.variants[option](value)
    return made
