"""The facts of all tests of a run, in the process that writes the summary: those of tests that never ended as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_regional.report.facts import Facts, read

if TYPE_CHECKING:
    import pytest


class CollectedFacts:
    """Facts by test. A test has some from its setup on, so that one that takes its process with it is known too."""

    def __init__(self) -> None:
        self._by_test: dict[str, Facts] = {}

    def note(self, report: pytest.TestReport) -> None:
        """Take what rides on ``report``, of whatever phase, from whatever process."""
        fact = read(report)
        if fact is None:
            self._note_other(report)
        elif report.when == "call" or report.outcome != "passed":
            self._by_test[report.nodeid] = fact
        elif report.when == "setup":
            fact["outcome"] = "not finished"
            self._by_test[report.nodeid] = fact

    def _note_other(self, report: pytest.TestReport) -> None:
        # What pytest-xdist reports in place of a worker that died has no facts, and no phase.
        begun = self._by_test.get(report.nodeid)
        if begun is not None and begun["outcome"] == "not finished" and report.outcome == "failed":
            begun["outcome"] = "crashed"

    def process_ends(self) -> None:
        """Take what has begun, in this process, for what ends with it."""
        for fact in self._by_test.values():
            if fact["outcome"] == "not finished":
                fact["outcome"] = "crashed"

    @property
    def facts(self) -> list[Facts]:
        """All facts, in the order in which the tests began."""
        return list(self._by_test.values())


__all__ = ["CollectedFacts"]
