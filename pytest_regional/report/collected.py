"""The facts of all tests of a run, in the process that writes the summary: those of tests that never ended as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pytest_regional.report.crashes import CRASH
from pytest_regional.report.facts import Facts, read

if TYPE_CHECKING:
    import pytest


class CollectedFacts:
    """Facts by test. A test has some from its setup on, so that one that takes its process with it is known too."""

    def __init__(self) -> None:
        self._by_test: dict[str, Facts] = {}
        self._ended: set[str] = set()

    def note(self, report: pytest.TestReport) -> None:
        """Take what rides on ``report``, of whatever phase, from whatever process."""
        if report.when == "teardown":
            self._ended.add(report.nodeid)
        elif report.when == "setup":
            self._ended.discard(report.nodeid)
        fact = read(report)
        if fact is None:
            self._note_other(report)
        elif report.when == "call" or report.outcome != "passed":
            self._by_test[report.nodeid] = fact
        elif report.when == "setup":
            fact["outcome"] = "not finished"
            self._by_test[report.nodeid] = fact

    def _note_other(self, report: pytest.TestReport) -> None:
        # What pytest-xdist reports in place of a worker that died has no facts, and no phase of pytest's.
        if report.when in ("setup", "call", "teardown") or report.outcome != "failed":
            return
        crash: dict[str, Any] = getattr(report, CRASH, {})
        known = self._by_test.get(report.nodeid)
        if known is None and "facts" in crash:  # in its setup, before which nothing was reported
            known = cast("Facts", crash["facts"])
        if known is not None and (crash or report.nodeid not in self._ended):
            self._by_test[report.nodeid] = _crashed(known, crash.get("phase", ""), report.longreprtext)

    def process_ends(self) -> None:
        """Take what has begun, in this process, for what ends with it."""
        for fact in self._by_test.values():
            if fact["outcome"] == "not finished":
                fact["outcome"] = "crashed"

    @property
    def facts(self) -> list[Facts]:
        """All facts, in the order in which the tests began."""
        return list(self._by_test.values())


def _crashed(fact: Facts, phase: str, text: str) -> Facts:
    where = f"{text}\nin its {phase}" if phase else text
    return cast("Facts", {**fact, "outcome": "crashed", "failure": where, **({"phase": phase} if phase else {})})


__all__ = ["CollectedFacts"]
