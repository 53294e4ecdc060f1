"""A plugin runs a test again: nothing of its first run may make the second one pass, or be counted with it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

from pytest_regional.report.facts import ATTRIBUTE
from pytest_regional.report.this_run import CollectedFacts
from tests.plugin.conftest import _torch_stays_imported, downstream, repository  # noqa: F401

#: What pytest-rerunfailures, flaky and others do: another try after a failure, whose report is none of a failure.
RUNS_AGAIN = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for tries in reversed(range(3)):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = any(report.failed for report in reports)
        for report in reports:
            if report.failed and tries:
                report.outcome = "rerun"
            item.ihook.pytest_runtest_logreport(report=report)
        if not failed:
            break
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True

def pytest_report_teststatus(report):
    if report.outcome == "rerun":
        return "rerun", "R", "RERUN"
"""

SOURCE = """
    tries = []

    @pytest.mark.regional_compile
    def test_vacuous(regional):
        regional.compile(plain)(*pair(regional))

    @pytest.mark.regional_compile
    def test_recovers(regional, record_property):
        tries.append(regional.folder)
        with regional.expect(region_compiles=1, cache_hits=0):
            regional.compile(block)(*pair(regional))
        assert len(set(tries)) == 2

    @pytest.mark.regional_compile
    def test_loses_its_region(regional):
        program = plain if getattr(test_loses_its_region, "ran", False) else block
        test_loses_its_region.ran = True
        regional.compile(program)(*pair(regional))
        assert program is plain

    @pytest.fixture
    def breaks_later():
        assert not getattr(test_recovers, "ran", False)
        test_recovers.ran = True

    @pytest.mark.regional_compile
    def test_no_harness_in_the_second_run(breaks_later, regional):
        regional.compile(block)(*pair(regional))
        raise LookupError

    @pytest.mark.regional_compile
    def test_passes(regional):
        regional.compile(block)(*pair(regional))
"""

ENDINGS = {
    "test_vacuous": ("failed", 3, 0),
    "test_recovers": ("passed", 2, 1),
    "test_loses_its_region": ("failed", 3, 0),
    "test_no_harness_in_the_second_run": ("error", 3, 0),
    "test_passes": ("passed", 1, 1),
}


def check(pytester, result):
    result.assert_outcomes(passed=2, failed=2, errors=1)
    result.stdout.fnmatch_lines(
        ["it *2 passed, 2 failed, 1 error", "4 tests ran more than once, and counts as it ended last: *, ..."]
    )
    tests = json.loads((pytester.path / "out.json").read_text())["tests"]
    found = {
        fact["test"].partition("::")[2].partition("[")[0]: (
            fact["outcome"],
            fact["runs"],
            fact["counters"].get("region_compiles", 0),
        )
        for fact in tests
    }
    assert found == ENDINGS
    cases = ElementTree.parse(pytester.path / "out.xml").getroot().iter("testcase")
    for case in cases:
        names = [one.get("name") for one in case.iter("property")]
        assert len(names) == len(set(names)), case.get("name")


OPTIONS = ("--regional-backend=reference", "--regional-report=out.json", "--junit-xml=out.xml")


def test_emulated(downstream, pytester):  # noqa: F811
    pytester.makeconftest(RUNS_AGAIN)
    check(pytester, downstream(SOURCE, *OPTIONS))


def test_with_pytest_rerunfailures(downstream, pytester):  # noqa: F811
    pytest.importorskip("pytest_rerunfailures")
    check(pytester, downstream(SOURCE, *OPTIONS, "-p", "rerunfailures", "--reruns=2"))


def test_one_test_that_is_collected_twice_has_two_folders(downstream, pytester):  # noqa: F811
    result = downstream(
        """
        @pytest.mark.regional_compile
        def test_compiles(regional):
            with regional.expect(region_compiles=1, cache_hits=0):
                regional.compile(block)(*pair(regional))
        """,
        "--regional-backend=reference",
        "--keep-duplicates",
        "test_it.py",
        "test_it.py",
    )
    result.assert_outcomes(passed=2)


def facts(when, outcome):
    report = pytest.TestReport("test_it.py::test", ("test_it.py", 1, "test"), {}, outcome, None, when)
    setattr(report, ATTRIBUTE, {"version": 1, "test": report.nodeid})
    return report


@pytest.mark.parametrize("last", ["passed", "failed", "skipped"])
@pytest.mark.parametrize("when", ["setup", "call", "teardown"])
def test_the_last_ending_counts(when, last):
    collected = CollectedFacts()
    for report in [facts("setup", "passed"), facts(when, "rerun"), facts("setup", "passed"), facts("call", last)]:
        collected.note(report)
    assert [fact["outcome"] for fact in collected.facts] == [last]
