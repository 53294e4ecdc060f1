"""The mark of the tests that ``make conformance`` runs."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark; a wheel has the suites without the settings of this repository."""
    config.addinivalue_line("markers", "quick: a conformance test that `make conformance` runs; SUITES=all runs all")
