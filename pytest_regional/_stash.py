"""The keys of what the plugin keeps in pytest's stashes: on an item unless said otherwise. Imported in every run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from pytest_regional._marks import CompileMark
    from pytest_regional._session import RegionalSession
    from pytest_regional.backends.spec import BackendSpec
    from pytest_regional.fuzz.fuzz_test import FuzzTest
    from pytest_regional.harness.observe.graph_drawing import GraphDrawer
    from pytest_regional.harness.regional import Regional


class Target(NamedTuple):
    """What one marked test runs on, resolved at collection.

    Attributes:
        spec: the backend.
        device: the name of the device.
        mark: the test's own mark.
        backend: the name by which the backend was asked for.
    """

    spec: BackendSpec
    device: str
    mark: CompileMark
    backend: str


#: Of the config: the run, while a backend is under test.
SESSION: pytest.StashKey[RegionalSession] = pytest.StashKey()

#: A usage error found on an xdist worker, which the tests report.
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
