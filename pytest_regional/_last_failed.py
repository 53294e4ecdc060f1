"""``--lf`` for fuzz tests: each has as many parts as processes share it, so another run may have other parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_regional.fuzz.fuzz_test import is_fuzz_test, shards

#: The part of a test's id that :func:`pytest_regional._collection.parametrize` adds.
_SHARD = re.compile(r"(?<=[\[-])shard\d+(?=[\]-])")


class LastFailedHooks:
    """Hooks of every process: in each that collects, pytest chooses the tests that failed last."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Count all parts of a fuzz test as failed where one of another run did: any may meet the failure now."""
        failed = _last_failed(session.config)
        for test in [one for one in failed if _SHARD.search(str(one))]:
            parts = (_SHARD.sub(f"shard{number}", str(test)) for number in range(_processes(session.config)))
            failed.update((_as(type(test), part), True) for part in parts)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: Sequence[pytest.Item]) -> None:
        """Forget the parts of fuzz tests that no longer exist, which would count as failed for ever."""
        failed = _last_failed(config)
        fuzzed = {item.nodeid for item in items if is_fuzz_test(item)}
        wholes = {_SHARD.sub("", test) for test in fuzzed}
        for test in [one for one in failed if str(one) not in fuzzed and _SHARD.sub("", str(one)) in wholes]:
            del failed[test]


def _last_failed(config: pytest.Config) -> dict[Any, bool]:
    """Return what pytest's plugin for ``--lf`` keeps, to be changed; it is off with ``-p no:cacheprovider``.

    Its keys are ids of tests: texts in pytest 8, objects in pytest 9.2.
    """
    failed: dict[Any, bool] = getattr(config.pluginmanager.getplugin("lfplugin"), "lastfailed", {})
    return failed


def _as(kind: Any, test: str) -> Any:
    """Return the id ``test`` as a key of that kind."""
    return getattr(kind, "parse", kind)(test)


def _processes(config: pytest.Config) -> int:
    workers = () if hasattr(config, "workerinput") else getattr(config.option, "tx", None) or ()
    return max(shards(config), len(workers))
