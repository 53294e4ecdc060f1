"""How long tests took, and with pytest-xdist the order that follows from it: the long ones begin first.

A worker that begins a test of a minute when the others are done makes them wait. Other tests stay in pytest's order,
which sets up the fewest fixtures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from pytest_regional._session import RegionalSession

_KEY = "regional/durations"
_INPUT = "regional_durations"

#: Tests that took less than these seconds are not remembered.
_LEAST = 1.0
#: The part of all seconds from which on a test is a long one.
_LONG = 0.02
_MOST = 2000

Test = TypeVar("Test")


class DurationHooks:
    """Hooks of every process: workers order their tests, the others remember how long tests took."""

    def __init__(self, session: RegionalSession) -> None:
        self._config: Any = session.config
        self._errors = session.errors
        self._seconds: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker how long tests took, if it is given tests in the order in which it collects them."""
        with self._errors.kept("reading how long tests took"):
            if self._config.getvalue("dist") in ("load", "worksteal"):
                node.workerinput[_INPUT] = self._known(), self._config.getvalue("dist")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put long tests first."""
        given = getattr(self._config, "workerinput", {})
        if _INPUT not in given or self._config.pluginmanager.has_plugin("randomly"):
            return
        known, distribution = given[_INPUT]
        seconds = [known.get(item.nodeid, 0.0) for item in items]
        items[:] = ordered(items, seconds, first_shares(len(items), given["workercount"], distribution))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up how long a test takes."""
        self._seconds[report.nodeid] += report.duration

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Remember the longest tests, of earlier runs those that did not run."""
        if hasattr(self._config, "workerinput") or self._cache is None:
            return
        with self._errors.kept("writing down how long tests took"):
            earlier = {test: seconds for test, seconds in self._known().items() if test not in self._seconds}
            found = {test: round(seconds, 2) for test, seconds in self._seconds.items() if seconds >= _LEAST}
            longest = sorted({**earlier, **found}.items(), key=lambda one: -one[1])[:_MOST]
            if found or earlier:
                self._cache.set(_KEY, dict(longest))

    @property
    def _cache(self) -> Any:
        """Return pytest's cache; it is None with ``-p no:cacheprovider``."""
        return getattr(self._config, "cache", None)

    def _known(self) -> dict[str, float]:
        found = {} if self._cache is None else self._cache.get(_KEY, {})
        return dict(found) if isinstance(found, Mapping) else {}


def first_shares(tests: int, workers: int, distribution: str) -> list[int]:
    """Return how many tests pytest-xdist gives each worker at first (3.5 to 3.8)."""
    if distribution == "load":
        return [max(2, tests // workers // 4)] * workers
    shares = []
    for left in range(workers, 0, -1):
        shares.append(tests // left)
        tests -= shares[-1]
    return shares


def ordered(tests: Sequence[Test], seconds: Sequence[float], shares: Sequence[int]) -> list[Test]:
    """Return tests in an order in which each worker begins with long ones.

    Args:
        tests: in their usual order.
        seconds: how long each took; 0 where that is not known.
        shares: how many tests each worker is given at first, one after the other.
    """
    total = sum(seconds)
    long = sorted((n for n, took in enumerate(seconds) if took > _LONG * total), key=lambda n: -seconds[n])
    others = iter(sorted(set(range(len(tests))) - set(long)))
    found: list[int] = []
    for worker, share in enumerate(shares):
        own = long[worker :: len(shares)][:share]
        found += [*own, *(number for _, number in zip(range(share - len(own)), others, strict=False))]
    late = [number for number in long if number not in found]
    return [tests[number] for number in (*found, *late, *others)]
