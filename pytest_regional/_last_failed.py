"""``--lf`` for fuzz tests: each has as many parts as processes share it, so another run may have other parts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_regional.fuzz.fuzz_test import shards
from pytest_regional.report.facts import ATTRIBUTE

#: The part of a test's id that :func:`pytest_regional._collection.parametrize` adds.
_SHARD = re.compile(r"(?<=[\[-])shard\d+(?=[\]-])")


class LastFailedHooks:
    """Hooks of every process: in each that collects, pytest chooses the tests that failed last."""

    def __init__(self) -> None:
        #: What was added, and which parts of fuzz tests ran.
        self._added: set[str] = set()
        self._ran: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Count all parts of a fuzz test as failed where one of another run did: any may meet the failure now."""
        failed = _last_failed(session.config)
        if session.config.pluginmanager.has_plugin("dsession"):
            return  # the workers collect
        for test in [one for one in failed if _SHARD.search(str(one))]:
            for part in (_SHARD.sub(f"shard{number}", str(test)) for number in range(shards(session.config))):
                key = _as(type(test), part)
                self._added |= {part} if key not in failed else set()
                failed[key] = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which parts of fuzz tests ran."""
        if "shard" in getattr(report, ATTRIBUTE, ()):
            self._ran.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Forget parts that did not run although their test did: they no longer exist, and would never pass."""
        failed = _last_failed(session.config)
        tests = {_SHARD.sub("", part) for part in self._ran}
        for one in [one for one in failed if str(one) not in self._ran]:
            if str(one) in self._added or _SHARD.sub("", str(one)) in tests:
                del failed[one]


def _last_failed(config: pytest.Config) -> dict[Any, bool]:
    """Return what pytest's plugin for ``--lf`` keeps, to be changed; it is off with ``-p no:cacheprovider``.

    Its keys are ids of tests: texts in pytest 8, objects in pytest 9.2.
    """
    failed: dict[Any, bool] = getattr(config.pluginmanager.getplugin("lfplugin"), "lastfailed", {})
    return failed


def _as(kind: Any, test: str) -> Any:
    """Return the id ``test`` as a key of that kind."""
    return getattr(kind, "parse", kind)(test)
