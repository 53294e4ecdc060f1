"""Facts of tests that passed, failed, or never came back."""

from __future__ import annotations

import pytest

from pytest_regional.report.facts import ATTRIBUTE
from pytest_regional.report.this_run import CollectedFacts


def report(when, outcome="passed", *, test="test_it.py::test", facts=True):
    made = pytest.TestReport(test, ("test_it.py", 1, "test"), {}, outcome, None, when)
    if facts:
        setattr(made, ATTRIBUTE, {"version": 1, "test": test, "worst_parity": {"setup": None, "call": 0.5}.get(when)})
    return made


def outcomes(*reports):
    collected = CollectedFacts()
    for one in reports:
        collected.note(one)
    return [fact["outcome"] for fact in collected.facts]


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([report("setup"), report("call"), report("teardown")], "passed"),
        ([report("setup"), report("call", "failed"), report("teardown")], "failed"),
        ([report("setup"), report("call"), report("teardown", "failed")], "error"),
        ([report("setup", "failed"), report("teardown")], "error"),
        ([report("setup", "skipped"), report("teardown")], "skipped"),
        ([report("setup")], "not finished"),
        ([report("setup"), report("???", "failed", facts=False)], "crashed"),
    ],
)
def test_the_outcome_is_that_of_the_last_phase_that_tells(reports, expected):
    assert outcomes(*reports) == [expected]


def test_a_crash_says_nothing_of_other_tests():
    other = "test_it.py::other"
    reports = [report("setup"), report("setup", test=other), report("???", "failed", test=other, facts=False)]
    assert outcomes(*reports) == ["not finished", "crashed"]


def test_a_test_that_ended_did_not_crash_afterwards():
    assert outcomes(report("setup"), report("call"), report("teardown"), report("???", "failed", facts=False)) == [
        "passed"
    ]


def test_tests_without_the_mark_are_none_of_ours():
    assert outcomes(report("setup", facts=False), report("call", facts=False)) == []


def test_facts_of_the_call_replace_those_of_the_setup():
    collected = CollectedFacts()
    collected.note(report("setup"))
    collected.note(report("call"))
    assert [fact["worst_parity"] for fact in collected.facts] == [0.5]
