"""Rows that are not in the quick slice run only where the environment asks for them."""

from __future__ import annotations

import os

import pytest

VARIABLE = "REGIONAL_STALENESS"


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark of the rows that are not in the quick slice."""
    config.addinivalue_line("markers", f"whole_staleness: a row of suites/staleness that runs with {VARIABLE}=whole")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect these rows, unless they are asked for, all or by name."""
    if os.environ.get(VARIABLE) == "whole" or any("::test_fresh[" in argument for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("whole_staleness")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("whole_staleness")]
