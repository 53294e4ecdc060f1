"""What the lines under the conformance table add up."""

from __future__ import annotations

import io

import pytest
from _pytest._io import TerminalWriter

from pytest_regional.report import terminal
from pytest_regional.report.document import OUTCOMES

from .test_document import fact


class Reporter(TerminalWriter):
    """As much of pytest's terminal reporter as the table uses."""

    def __init__(self):
        self.written = io.StringIO()
        super().__init__(self.written)

    def write_line(self, line, **markup):
        self.line(line, **markup)

    def section(self, title, sep):
        self.sep(sep, title)


def written(*facts):
    reporter = Reporter()
    terminal.write(reporter, facts, 0)
    return reporter.written.getvalue()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_is_counted(outcome):
    assert f"1 {outcome}" in written(fact("a", outcome))


@pytest.mark.parametrize(
    ("outcome", "said"),
    [("passed", "0.5"), ("failed", "7"), ("known failure", "0.5"), ("unexpected pass", "7")],
)
def test_a_difference_that_a_test_asks_for_is_no_margin_of_the_run(outcome, said):
    """A test that passes with a comparison which failed had it fail on purpose; that of a known failure is known."""
    close, far = {**fact("a"), "worst_parity": 0.5}, {**fact("b", outcome), "worst_parity": 7.0}
    assert f"worst parity margin {said} of what is allowed" in written(close, far)


def test_without_a_comparison_there_is_no_margin():
    assert "margin" not in written(fact("a"), {**fact("b"), "worst_parity": 1e300})
    assert "worst parity margin 1 of" in written({**fact("a"), "worst_parity": 1.0})
