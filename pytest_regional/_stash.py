"""What the plugin keeps in pytest's stashes, by key: on an item unless said otherwise. Imported in every pytest run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_regional._session import RegionalSession, Target
    from pytest_regional.fuzz.fuzz_test import FuzzTest
    from pytest_regional.harness.observe.graph_drawing import GraphDrawer
    from pytest_regional.harness.regional import Regional


#: Of the config: the run, while a backend is under test.
SESSION: pytest.StashKey[RegionalSession] = pytest.StashKey()

#: A usage error found on an xdist worker, told by the tests.
PROBLEM: pytest.StashKey[str] = pytest.StashKey()

#: Backend and device of an item that pytest does not parametrize.
CHOICE: pytest.StashKey[tuple[str, str]] = pytest.StashKey()

#: Of every marked test that runs.
TARGET: pytest.StashKey[Target] = pytest.StashKey()

#: From its setup on.
HARNESS: pytest.StashKey[Regional] = pytest.StashKey()

#: Where a report is asked for.
DRAWER: pytest.StashKey[GraphDrawer] = pytest.StashKey()

#: Of fuzz tests.
FUZZ: pytest.StashKey[FuzzTest] = pytest.StashKey()
