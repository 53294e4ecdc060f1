"""Attacks that take minutes run only where the environment asks for them."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked slow, unless it is asked for."""
    if os.environ.get("REGIONAL_SLOW_ATTACKS"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow; set REGIONAL_SLOW_ATTACKS=1"))
