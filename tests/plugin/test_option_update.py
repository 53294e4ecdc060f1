"""``--regional-update``: what a run writes, what it never removes, and what it says of unused goldens."""

from __future__ import annotations

import itertools
import json
import os
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_regional.harness.goldens.file import GoldenFile, GoldenKey
from pytest_regional.plugin.goldens import ATTRIBUTE, GoldenHooks
from pytest_regional.plugin.workers import ReportingErrors
from pytest_regional.report.document import RunReport
from tests.attacks.test_reruns import RUNS_AGAIN
from tests.warm_process import run_module

from .conftest import HEADER, PROGRAM

SOURCE = """
    pytestmark = pytest.mark.regional_compile

    def test_one(regional):
        regional.assert_golden(block, *pair(regional))

    @pytest.mark.parametrize("n", [2, 3])
    def test_two(regional, n):
        regional.assert_golden(block, *pair(regional, n), facts="key", name="inputs")
"""
ON = ("--regional-backend=aot_eager", "--regional-device=cpu")
UPDATE = (*ON, "--regional-update")


@pytest.fixture
def goldens(pytester):
    """The file of the goldens of ``test_it.py``."""
    return Path(pytester.path, "__goldens__", "test_it.txt")


@pytest.fixture(scope="module")
def text_written(tmp_path_factory):
    """The goldens of ``SOURCE`` as one run writes them: tests that need them all begin with a copy."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "test_it.py").write_text(HEADER + textwrap.dedent(SOURCE))
    done = run_module("pytest", [f"--basetemp={folder / 'basetemp'}", *UPDATE], folder, os.environ)
    assert done.returncode == 0, done.stdout
    return (folder / "__goldens__" / "test_it.txt").read_text(encoding="utf-8")


@pytest.fixture
def written(goldens, text_written):
    """The file of the goldens of ``test_it.py``, with what ``SOURCE`` writes."""
    goldens.parent.mkdir()
    goldens.write_text(text_written, encoding="utf-8")
    return goldens


def keys(goldens):
    return sorted(map(str, GoldenFile.read(goldens).goldens))


ALL = ["test_one (aot_eager)", "test_two[2] (aot_eager, inputs)", "test_two[3] (aot_eager, inputs)"]


def test_a_run_writes_and_the_next_compares(downstream, goldens):
    result = downstream(SOURCE, *ON)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*GoldenError: __goldens__/test_it.txt has no golden of test_one (aot_eager)*"])
    assert not goldens.exists()

    result = downstream(SOURCE, *UPDATE)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["regional goldens: 3 goldens written in __goldens__/test_it.txt"])
    assert keys(goldens) == ALL
    written = goldens.read_bytes()

    for options in (ON, UPDATE):
        result = downstream(SOURCE, *options)
        result.assert_outcomes(passed=3)
        result.stdout.no_fnmatch_line("*regional goldens*")
        assert goldens.read_bytes() == written
    assert [path.name for path in goldens.parent.iterdir()] == ["test_it.txt"]


def test_a_change_is_said_in_sentences_and_in_full(downstream, written):
    changed = SOURCE.replace("golden(block,", "golden(plain,")
    result = downstream(changed, *ON, "-v")
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(
        [
            "E *GoldenError: compiled otherwise than the golden (__goldens__/test_it.txt:4, from torch *, cpu):",
            "E *inference: aten.mm.default moved out of region mlp",
            "E *If that is intended: pytest --regional-update",
            "*regional: golden, line by line*",
            "-    mlp: aten.mm.default",
            "+    aten.mm.default",
        ]
    )
    # Only the line of the test is of a frame that people see.
    shown = re.findall(r"^(\S+\.py):\d+: ", result.stdout.str(), re.MULTILINE)
    assert set(shown) == {"test_it.py"}


def test_workers_lose_nothing(downstream, goldens):
    downstream(SOURCE, *UPDATE, "-n2", subprocess=True).assert_outcomes(passed=3)
    assert keys(goldens) == ALL
    downstream(SOURCE, *ON).assert_outcomes(passed=3)


KILLED = """
    import os

    pytestmark = pytest.mark.regional_compile

    def test_one(regional):
        regional.assert_golden(block, *pair(regional))
        if os.path.exists("die"):
            os._exit(3)

    @pytest.mark.parametrize("n", [2, 3])
    def test_two(regional, n):
        regional.assert_golden(block if n == 2 else plain, *pair(regional), facts="ops", name="inputs")
"""


@pytest.mark.slow("starts runs with two workers, which import torch", fast="test_goldens_of_a_run_that_lost_a_worker")
def test_a_worker_that_is_killed_takes_no_golden_along(downstream, written, pytester):
    """Of the test that took it along the old golden stays; what other tests wrote is there."""
    before = GoldenFile.read(written)
    Path(pytester.path, "die").touch()
    gone = KILLED.replace("test_two", "test_three")
    result = downstream(gone, *UPDATE, "-n1", subprocess=True)
    result.assert_outcomes(passed=2, failed=1)
    after = GoldenFile.read(written)
    assert keys(written) == [
        *ALL[:1],
        "test_three[2] (aot_eager, inputs)",
        "test_three[3] (aot_eager, inputs)",
        *ALL[1:],
    ]
    for key, devices in before.goldens.items():
        assert [entry.text for entry in after.goldens[key]["cpu"].values()] == [
            entry.text for entry in devices["cpu"].values()
        ]
    result.stdout.no_fnmatch_line("*unused in*")


@pytest.mark.parametrize("lost", [0, 1])
def test_goldens_of_a_run_that_lost_a_worker(written, lost):
    """What tests wrote is there, and nothing counts as unused: nobody knows what the worker would have run."""
    config = SimpleNamespace(rootpath=written.parents[1])
    settings = SimpleNamespace(backends=("aot_eager",), devices=("cpu",), update=True)
    session = SimpleNamespace(
        config=config, settings=settings, spec=lambda name: SimpleNamespace(name=name), errors=ReportingErrors()
    )
    hooks = GoldenHooks(session, SimpleNamespace(reason=""), SimpleNamespace(lost=lost))
    goldens = {"test_one": None, "test_three": ["ops", "  inference"]}
    tests = [[f"test_it.py::{test}", test, "aot_eager"] for test in goldens]
    output = {ATTRIBUTE: {"tests": {str(written): tests}, "left_out": [], "ownerless": []}}
    hooks.pytest_testnodedown(SimpleNamespace(gateway=SimpleNamespace(id="gw0"), workeroutput=output))
    for (test, text), when in itertools.product(goldens.items(), ("setup", "call", "teardown")):
        report = SimpleNamespace(nodeid=f"test_it.py::{test}", when=when, outcome="passed")
        if when == "call":
            used = {"path": str(written), "key": [test, "aot_eager", ""], "device": "cpu", "version": [2, 13]}
            setattr(report, ATTRIBUTE, [{**used, "text": text, "state": "same"}])
        hooks.pytest_runtest_logreport(report)
    hooks.finish()
    assert session.errors.taken() == []
    kept = ALL if lost else ALL[:1]
    assert keys(written) == sorted([*kept, "test_three (aot_eager)"])
    removed = [one["test"] for one in hooks.states() if one["state"] == "removed"]
    assert removed == ([] if lost else ["test_two[2]", "test_two[3]"])


def test_a_run_that_ends_in_a_test_writes_nothing(downstream, written, pytester):
    before = written.read_bytes()
    Path(pytester.path, "die").touch()
    downstream(KILLED, *UPDATE, subprocess=True)
    assert written.read_bytes() == before


REPORT = "--regional-report=report.json"


def states(pytester):
    """Return what the report of the run says of each golden."""
    (pytester.path / ".git").mkdir(exist_ok=True)
    goldens = RunReport.read(Path(pytester.path, "report.json")).goldens
    assert {one["file"] for one in goldens} <= {"__goldens__/test_it.txt", "__goldens__/test_gone.txt"}
    return {str(GoldenKey(one["test"], one["backend"], one["name"])): one["state"] for one in goldens}


def test_the_report_lists_goldens(downstream, goldens, pytester):
    downstream(SOURCE, *ON, REPORT)
    assert states(pytester) == dict.fromkeys(ALL, "missing")
    downstream(SOURCE, *UPDATE, REPORT)
    assert states(pytester) == dict.fromkeys(ALL, "written")
    downstream(SOURCE, *UPDATE, REPORT)
    assert states(pytester) == dict.fromkeys(ALL, "same")
    goldens.with_name("test_gone.txt").write_text(goldens.read_text())
    changed = GONE.replace("golden(block,", "golden(plain,")
    downstream(changed, *ON, REPORT)
    # A test that fails may have stopped before it used the others of its name; those of other names are unused.
    assert states(pytester) == {ALL[0]: "changed", ALL[1]: "unused", ALL[2]: "unused", " ()": "unused"}
    downstream(GONE, *UPDATE, REPORT)
    assert states(pytester) == {ALL[0]: "same", ALL[1]: "removed", ALL[2]: "removed", " ()": "removed"}
    downstream("def test_nothing(): pass", *ON, REPORT, "-k", "nothing")
    assert states(pytester) == {ALL[0]: "unused"}


@pytest.mark.slow("starts runs with two workers, which import torch", fast="test_the_report_lists_goldens")
def test_the_report_of_workers_lists_goldens(downstream, written, pytester):
    changed = SOURCE.replace("pair(regional, n)", "pair(regional, n + n % 2)")
    downstream(changed, *ON, REPORT, "-n2", subprocess=True).assert_outcomes(passed=2, failed=1)
    assert states(pytester) == {ALL[0]: "same", ALL[1]: "same", ALL[2]: "changed"}
    downstream(changed + "        assert n == 2\n", *UPDATE, REPORT, "-n2", subprocess=True)
    assert states(pytester) == {ALL[0]: "same", ALL[1]: "same", ALL[2]: "not written"}


def test_a_report_without_goldens_is_as_it_was(downstream, pytester):
    downstream("@pytest.mark.regional_compile(expects_regions=False)\ndef test_it(regional): pass", *ON, REPORT)
    assert "goldens" not in json.loads(Path(pytester.path, "report.json").read_text())


def test_refused_where_ci_is_set(downstream, goldens, monkeypatch):
    monkeypatch.setenv("CI", "true")
    for options in (UPDATE, ("--regional-update",)):
        result = downstream(SOURCE, *options)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*--regional-update: refused where the environment has CI set*"])
    assert not goldens.exists()
    downstream(SOURCE, *ON).assert_outcomes(failed=3)


def test_refused_where_no_test_would_run(downstream):
    result = downstream(SOURCE, "--regional-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--regional-update: no test runs without a backend under test*"])


def test_no_setting_of_the_ini_file(downstream, goldens, pytester):
    """Who forgets it there would never see a difference."""
    pytester.makeini("[pytest]\nregional_update = true\n")
    result = downstream(SOURCE, *ON)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*Unknown config option: regional_update*"])
    assert not goldens.exists()


def test_a_test_that_fails_writes_nothing(downstream, goldens):
    source = SOURCE + "        assert n == 2\n"
    result = downstream(source, *UPDATE)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["regional goldens: 1 golden not written: the test did not pass", "regional goldens: 2 goldens written in *"]
    )
    assert keys(goldens) == ALL[:2]


GONE = SOURCE.partition("    @pytest.mark.parametrize")[0]


def test_unused_goldens_are_reported_and_removed(downstream, written):
    said = "regional goldens: unused in __goldens__/test_it.txt: test_two?2? (aot_eager, inputs), test_two?3? *; "
    result = downstream(GONE, *ON)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"{said}--regional-update removes what no test uses"])
    assert keys(written) == ALL
    downstream(GONE, *UPDATE).stdout.fnmatch_lines([f"{said}removed"])
    assert keys(written) == ALL[:1]


def test_a_name_that_a_test_uses_no_more(downstream, written):
    renamed = SOURCE.replace('name="inputs"', 'name="other"')
    result = downstream(renamed, *UPDATE)
    result.stdout.fnmatch_lines(["*unused in *: test_two?2? (aot_eager, inputs) on cpu, test_two?3? *; removed"])
    assert keys(written) == [one.replace("inputs", "other") for one in ALL]


def test_the_last_golden_takes_its_file_along(downstream, written):
    downstream("def test_nothing(): pass", *UPDATE)
    assert not written.exists()


CONFTEST = """
    def pytest_collection_modifyitems(items):
        items[:] = items[:1]  # as plugins do that give each machine a part
"""


@pytest.mark.parametrize(
    "options",
    [("-k", "one"), ("test_it.py::test_one",), ("-m", "not slow"), ("--deselect", "test_it.py::test_slow"), ()],
)
def test_where_tests_are_left_out_nothing_is_unused(downstream, goldens, pytester, options):
    more = "\n    @pytest.mark.slow\n    def test_slow(regional):\n        regional.assert_golden(block, *pair(regional))\n"
    pytester.makeini("[pytest]\nmarkers = slow\n")
    downstream(SOURCE + more, *UPDATE)
    before = goldens.read_bytes()
    if not options:
        pytester.makeconftest(CONFTEST)
    result = downstream(GONE + more, *UPDATE, *options)
    result.stdout.no_fnmatch_line("*unused in*")
    assert goldens.read_bytes() == before


@pytest.mark.parametrize("options", [("--lf",), ("-x",)])
def test_where_not_all_tests_ran_nothing_is_unused(downstream, written, options):
    source = "@pytest.mark.regional_compile\ndef test_fails(regional): assert False\n" + textwrap.dedent(GONE)
    plain = (*UPDATE, "-p", "cacheprovider")
    if "--lf" in options:
        downstream(source, *plain, "--deselect=test_it.py::test_one")
    result = downstream(source, *plain, *options)
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*unused in*")
    assert keys(written) == ALL


def test_a_test_that_fails_uses_what_it_would_have_used(downstream, written):
    failing = SOURCE.replace(
        "regional.assert_golden(block, *pair(regional, n)", "assert n == 4; (block, *pair(regional)"
    )
    result = downstream(failing.replace(', facts="key", name="inputs"', ""), *UPDATE)
    result.assert_outcomes(passed=1, failed=2)
    assert keys(written) == ALL


def test_goldens_of_other_backends_stay(downstream, goldens):
    both = "--regional-backend=aot_eager,inductor"
    downstream(SOURCE, both, *UPDATE[1:]).assert_outcomes(passed=6)
    assert len(keys(goldens)) == 6
    downstream(GONE, *UPDATE)
    assert sorted(keys(goldens)) == [
        ALL[0],
        "test_one (inductor)",
        *(f"test_two[{n}] (inductor, inputs)" for n in (2, 3)),
    ]
    downstream(SOURCE.replace("golden(block,", "golden(plain,"), both, *ON[1:]).assert_outcomes(failed=4, passed=2)


def test_a_file_whose_test_file_is_gone(downstream, written):
    old = written.with_name("test_old.txt")
    old.write_bytes(written.read_bytes())
    said = "regional goldens: __goldens__/test_old.txt is of a test file that is gone; "
    downstream(SOURCE, *ON).stdout.fnmatch_lines([f"{said}--regional-update removes it"])
    assert old.exists()
    downstream(SOURCE, *UPDATE).stdout.fnmatch_lines([f"{said}removed"])
    assert not old.exists()
    assert keys(written) == ALL


@pytest.mark.parametrize(
    ("damage", "said"),
    [("<<<<<<< HEAD\n", "a merge conflict: keep one side"), ("speed\n", "expected the name of a fact")],
)
def test_a_damaged_file_fails_the_tests_and_stays_as_it_is(downstream, written, damage, said):
    text = written.read_text() + damage
    written.write_text(text)
    line = text.count("\n")
    for options in (ON, UPDATE):
        result = downstream(SOURCE, *options)
        result.assert_outcomes(failed=3)
        result.stdout.fnmatch_lines([f"E *GoldenFileError: *__goldens__/test_it.txt:{line}: *{said}*"])
        result.stdout.fnmatch_lines([f"regional goldens: no golden was written or counted: *:{line}: *{said}*"])
        assert written.read_text() == text


def test_a_directory_that_cannot_be_written_fails_the_run(downstream, goldens):
    goldens.parent.write_text("a file")
    result = downstream(SOURCE, *UPDATE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["regional goldens: *test_it.txt could not be written: *"])


CLASSES = """
    import unittest
    from pytest_regional import testing

    @pytest.mark.regional_compile
    class TestPlain:
        def test_one(self, regional):
            regional.assert_golden(block, *pair(regional))

    @pytest.mark.regional_compile
    class TestUnit(unittest.TestCase):
        def test_one(self):
            testing.assert_golden(block, *pair(testing.current()))

    @pytest.mark.xdist_group("a")
    @pytest.mark.regional_compile
    def test_in_a_group(regional):
        regional.assert_golden(block, *pair(regional))
"""


#: Adds the name of its group to the id of a test, as workers of pytest-xdist do.
IN_GROUPS = """
    import pytest

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(items):
        for item in items:
            for mark in item.iter_markers("xdist_group"):
                grouped = {"nodeid": f"{item.nodeid}@{mark.args[0]}"}
                item.__class__ = type("Grouped", (type(item),), grouped)
"""


def test_names_hold_neither_backend_nor_group(downstream, goldens, pytester):
    pytester.makeconftest(IN_GROUPS)
    both = "--regional-backend=aot_eager,inductor"
    downstream(CLASSES, both, *UPDATE[1:]).assert_outcomes(passed=6)
    names = {key.test for key in GoldenFile.read(goldens).goldens}
    assert names == {"TestPlain::test_one", "TestUnit::test_one", "test_in_a_group"}
    result = downstream(CLASSES, *UPDATE)
    result.assert_outcomes(passed=3)
    result.stdout.no_fnmatch_line("*regional goldens*")


@pytest.mark.slow("starts two workers", fast="test_names_hold_neither_backend_nor_group")
def test_names_in_workers_hold_no_group(downstream, goldens):
    downstream(CLASSES, "--regional-backend=aot_eager,inductor", *UPDATE[1:]).assert_outcomes(passed=6)
    fewer = CLASSES.replace("class TestUnit", "class TestOther")
    result = downstream(fewer, *UPDATE, "-n1", "--dist=loadgroup", subprocess=True)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["regional goldens: unused in *: TestUnit::test_one (aot_eager); removed"])
    names = {key.test for key in GoldenFile.read(goldens).goldens if key.backend == "aot_eager"}
    assert names == {"TestPlain::test_one", "TestOther::test_one", "test_in_a_group"}


RERUN = """
    seen = []

    @pytest.mark.regional_compile
    def test_one(regional):
        regional.assert_golden(block, *pair(regional))
        seen.append(1)
        assert len(seen) == 2
"""


def test_a_test_that_runs_again_writes_once_it_passes(downstream, goldens, pytester):
    pytester.makepyfile(runs_again=RUNS_AGAIN)
    downstream(RERUN, *UPDATE, "-p", "runs_again").assert_outcomes(passed=1)
    assert keys(goldens) == ALL[:1]
