"""The keys of what the plugin keeps in pytest's stashes, on an item unless said otherwise; and what a fuzz test is.

Imported in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from pytest_regional.backends.spec import BackendSpec
    from pytest_regional.fuzz.fuzz_test import FuzzTest
    from pytest_regional.harness.observe.listeners import GraphDrawer
    from pytest_regional.harness.regional import Regional
    from pytest_regional.plugin.marks import CompileMark
    from pytest_regional.plugin.session import RegionalSession


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

#: The fixture that makes each fuzz test as many items as processes share it.
SHARD_ARGUMENT = "_regional_fuzz_shard"


def is_fuzz_test(item: pytest.Item) -> bool:
    """Tell whether ``item`` is a fuzz test: it draws programs until its budget is spent."""
    return SHARD_ARGUMENT in getattr(item, "fixturenames", ())


def shard_of(item: pytest.Item) -> int:
    """Return which part of a fuzz test ``item`` is."""
    params: dict[str, int] = item.callspec.params if hasattr(item, "callspec") else {}
    return params.get(SHARD_ARGUMENT, 0)


def shards(config: pytest.Config) -> int:
    """Return how many processes share the fuzz tests: the xdist workers, or this one."""
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    return int(worker.get("workercount", 1))
