"""The suite of known bugs: its table, its checks, and what happens where the table is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from pytest_regional.testing import regional as harness
from suites.history.__main__ import VERSIONS, as_data, by_bug, by_class
from suites.history.known_bugs import BACKENDS, LAYERS, ORACLES, all_bugs
from tests.warm_process import run_module

ROOT = Path(__file__).parents[1]
BUGS = all_bugs()


# The table


def test_names_and_numbers_are_unique():
    numbers = [bug.number for bug in BUGS if bug.number]
    assert len(set(numbers)) == len(numbers)
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 60


def test_an_entry_is_complete():
    for bug in BUGS:
        assert bug.title.endswith("."), bug.id
        assert bug.layer in LAYERS, bug.id
        assert bug.notices in ORACLES, bug.id
        assert set(bug.but) <= set(BACKENDS), bug.id
        for versions in (bug.torch, *bug.but.values()):
            SpecifierSet(versions or "")
        assert any(bug.stands_in(version) for version in VERSIONS), f"{bug.id} exists in no supported version"


def test_a_finding_has_its_script():
    assert [bug.id for bug in BUGS if not bug.number and not (ROOT / bug.source).is_file()] == []


def test_the_table_as_data_is_plain_and_names_tests():
    data = json.loads(json.dumps(as_data(BUGS)))
    assert [entry["id"] for entry in data] == [bug.id for bug in BUGS]
    for entry in data:
        assert (ROOT / entry["check"].partition("::")[0]).is_file()
        assert set(entry["stands"]) == set(VERSIONS)


def test_the_page_shows_the_table():
    shown = (ROOT / "docs/history.md").read_text().partition("<!-- history table begins -->\n")[2]
    table = "\n".join([*by_class(BUGS), "", *by_bug(BUGS)])
    assert shown.partition("\n<!-- history table ends -->")[0] == table, "python -m suites.history prints it"


# The checks


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.layer != "dynamo"], ids=lambda bug: bug.id)
def test_a_check_passes_where_nothing_is_compiled(bug):
    """Behind Dynamo there is nothing but the graph: what fails would be a fault of the check."""
    requires = [name for name in bug.marks["requires"] if name != "inductor_code"]
    with harness("eager", **{**bug.marks, "device": "cpu", "expects_regions": False, "requires": requires}) as regional:
        bug.check(regional)


# Where the table is wrong

CASE = """
import pytest, torch
from suites.history.checks import parity, same
from suites.history.known_bugs import BugClass, BugNoticedError, assert_as_listed

bugs = BugClass("planted")

@bugs(1, {entry}, in_region=False)
def planted(regional):
    "A bug that is planted here."
    regional.assert_parity(torch.sin, torch.ones(3, device=regional.device))
    {check}

@pytest.mark.regional_compile
@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
"""
MINE = """
def mine(gm, inputs):
    return gm.forward
"""
NOTICED = "raise BugNoticedError('value', 'another value')"
STANDS = "layer='aot_autograd', notices='value'"


@pytest.fixture
def planted(pytester):
    """Return a function that runs a suite of one bug."""

    def run(entry, check="pass", backend="aot_eager", *options):
        pytester.makepyfile(test_it=CASE.format(entry=entry, check=check), mine=MINE)
        arguments = [f"--regional-backend={backend}", "-p", "no:cacheprovider", "-rxfE", *options]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{pytester.path}"}
        done = run_module("pytest", arguments, pytester.path, environment)
        return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0)

    return run


def test_a_bug_that_stands_is_expected(planted):
    result = planted(STANDS, NOTICED)
    result.assert_outcomes(xfailed=1)
    result.stdout.fnmatch_lines(["XFAIL*#1-planted*aot_eager has #1-planted (planted, aot_autograd): A bug that*"])


def test_a_bug_that_is_fixed_fails(planted):
    result = planted(STANDS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*BugTableError: #1-planted no longer stands on torch * with 'aot_eager'*"])


def test_a_bug_in_another_version_than_the_table_says_fails(planted):
    result = planted(STANDS + ", torch='<2.0'", NOTICED)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*BugTableError: #1-planted stands on torch * where the table says that it does not*"])


def test_a_bug_in_another_layer_than_the_table_says_fails(planted):
    planted("layer='inductor', notices='value'", NOTICED).assert_outcomes(failed=1)


def test_something_else_that_goes_wrong_is_no_sign_of_the_bug(planted):
    result = planted(STANDS, "raise RuntimeError('of another kind')")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*noticed by exception, where the table says 'value'*of another kind*"])


@pytest.mark.parametrize(("check", "outcome"), [("pass", "passed"), (NOTICED, "xfailed")])
def test_a_backend_that_the_table_does_not_list_has_what_it_has(planted, check, outcome):
    planted(STANDS, check, "mine:mine").assert_outcomes(**{outcome: 1})


def test_what_such_a_backend_is_known_to_have_can_be_held_to(planted, pytester):
    """A line in the adopter's file of known failures makes it strict."""
    backend = "mine:mine"
    lines = pytester.path / "known.txt"
    lines.write_text("mine | test_it.py::test_known_bug[#1-planted] | it has this | https://example.org/1\n")
    for check, outcome in ((NOTICED, "xfailed"), ("pass", "failed")):
        result = planted(STANDS, check, backend, f"--regional-known-failures={lines}")
        result.assert_outcomes(**{outcome: 1})


def test_a_run_ends_with_a_line_for_each_class():
    chosen = "suites/history/test_floats.py"
    arguments = ["--regional-backend=aot_eager,eager", "-p", "no:cacheprovider", "-k", "erf_near_zero", chosen]
    done = run_module("pytest", arguments, ROOT, os.environ)
    assert "aot_eager, float: 0 of 1 stand" in done.stdout
    assert "eager, float: 0 of 1 stand" in done.stdout
