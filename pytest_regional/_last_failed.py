"""``--lf`` for fuzz tests: each has as many parts as processes share it, so another run may have other parts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional.fuzz.fuzz_test import shards
from pytest_regional.report.facts import ATTRIBUTE

if TYPE_CHECKING:
    from pytest_regional._session import RegionalSession

#: The part of a test's id that :func:`pytest_regional._collection.parametrize` adds.
_SHARD = re.compile(r"(?<=[\[-])shard\d+(?=[\]-])")


class LastFailedHooks:
    """Hooks of every process: in each that collects, pytest chooses the tests that failed last.

    Args:
        session: of this process.
    """

    def __init__(self, session: RegionalSession) -> None:
        self._errors = session.errors
        self._failed = _last_failed(session.config)
        self._added: set[str] = set()
        self._ran: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Count all parts of a fuzz test as failed where one of another run did: any may meet the failure now."""
        with self._errors.kept("counting the parts of fuzz tests that failed last"):
            # The process that starts workers collects nothing.
            parts = 0 if session.config.pluginmanager.has_plugin("dsession") else shards(session.config)
            for test in [one for one in self._failed if _SHARD.search(str(one))]:
                for number in range(parts):
                    self._add(type(test), _SHARD.sub(f"shard{number}", str(test)))

    def _add(self, kind: Any, test: str) -> None:
        # The key of an id: it is a text in pytest 8, an object in pytest 9.2.
        key = getattr(kind, "parse", kind)(test)
        if key not in self._failed:
            self._added.add(test)
            self._failed[key] = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which parts of fuzz tests ran."""
        with self._errors.kept(f"noting that {report.nodeid} ran"):
            if "shard" in getattr(report, ATTRIBUTE, ()):
                self._ran.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Forget parts that did not run although their test did: they no longer exist, and would never pass."""
        with self._errors.kept("forgetting parts of fuzz tests that failed last"):
            tests = {_SHARD.sub("", part) for part in self._ran}
            for one in [one for one in self._failed if str(one) not in self._ran]:
                if str(one) in self._added or _SHARD.sub("", str(one)) in tests:
                    del self._failed[one]


def _last_failed(config: pytest.Config) -> dict[Any, bool]:
    """Return what pytest's plugin for ``--lf`` keeps, to be changed; it is off with ``-p no:cacheprovider``."""
    failed: dict[Any, bool] = getattr(config.pluginmanager.getplugin("lfplugin"), "lastfailed", {})
    return failed
