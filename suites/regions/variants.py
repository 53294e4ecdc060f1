"""Backends under test with options of their own: the partitioner, what happens when a region does not compile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest


def variant(regional: Any, **options: str) -> Callable[..., Any]:
    """Return the backend under test, as Dynamo calls it, with ``options``; skip where it has no such option."""
    if regional.backend == "reference":
        from pytest_regional.reference.dynamo_backend import regional as reference

        return functools.partial(reference, **options)
    if regional.backend == "torch" and set(options) <= {"partitioner"}:
        from pytest_regional._torch.backends import regional_inductor_backend

        return regional_inductor_backend(**options)
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    pytest.skip(f"backend {regional.backend!r} has no known way to choose {given}")
