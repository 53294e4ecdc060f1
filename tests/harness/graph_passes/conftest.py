from __future__ import annotations

import pytest

from pytest_regional.testing import regional


@pytest.fixture(scope="module")
def bare():
    """A harness for stage "graph", which compiles nothing."""
    with regional("aot_eager", expects_regions=False) as harness:
        yield harness


@pytest.fixture(scope="module")
def inductor():
    with regional("inductor", expects_regions=False) as harness:
        yield harness
