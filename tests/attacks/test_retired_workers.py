"""A test leaves what cannot be put back: its worker ends, another runs the rest, and no test is lost or run twice."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from pytest_regional.harness.isolation import Leak
from pytest_regional.plugin.workers import Retirement, UnrestorableStateError
from tests.warm_process import run_module


def retirement(folder: Path, *, worker: bool, restarts=None):
    config = SimpleNamespace(option=SimpleNamespace(maxworkerrestart=restarts))
    if worker:
        config.workerinput = {"workerid": "gw0"}
    return Retirement(config, folder)


LEFT = [Leak("a setting", 1, 2, restored=False, unrestorable=True)]


@pytest.mark.parametrize(("worker", "restarts"), [(False, None), (True, "0"), (True, "3")])
def test_where_no_other_process_runs_the_rest_the_test_fails(tmp_path, worker, restarts):
    with pytest.raises(UnrestorableStateError, match="test_it left state that cannot be restored: a setting"):
        retirement(tmp_path, worker=worker, restarts=restarts).retire("test_it", LEFT)


def ends(action):
    """Return how a copy of this process ends that does ``action``: it is killed if that does not end it."""
    copy = os.fork()
    if not copy:
        try:
            action()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])


def test_a_worker_leaves_a_note_that_the_controller_reads_once(tmp_path):
    of_worker = retirement(tmp_path, worker=True)
    item = SimpleNamespace(session=SimpleNamespace(_setupstate=SimpleNamespace(teardown_exact=lambda item: 1 / 0)))
    assert ends(lambda: of_worker.exit_before(item)) == -signal.SIGKILL
    of_worker.retire("test_it", LEFT)
    assert ends(lambda: of_worker.exit_before(item)) == 0
    node, controller = SimpleNamespace(gateway=SimpleNamespace(id="gw0")), retirement(tmp_path, worker=False)
    note = controller.of_worker(node)
    assert note["because"] == "test_it left a setting"
    assert "ZeroDivisionError" in note["error"]
    assert controller.of_worker(node) is None
    assert node.regional_retired


TESTS = """
import os, pathlib, pytest, torch

pytestmark = pytest.mark.regional_compile(expects_regions=False)

@pytest.fixture(scope="session", autouse=True)
def whole():
    yield
    log("torn down")

def log(what):
    with open("ran.txt", "a") as file:
        print(what, os.getpid(), torch.get_num_interop_threads(), file=file)

BEGAN_WITH = torch.get_num_interop_threads()

@pytest.mark.parametrize("number", range(6))
def test_it(number):
    log(number)
    if number in (1, 2) and torch.get_num_interop_threads() == BEGAN_WITH:
        torch.set_num_interop_threads(BEGAN_WITH + 1)

def test_last():
    log("last")
"""


@pytest.mark.slow(
    "starts runs with two workers, which import torch",
    fast="tests/plugin/test_schedulers.py::test_each_test_runs_once_and_the_run_ends",
)
def test_real_workers(pytester):
    pytester.makepyfile(test_it=TESTS)
    options = ("-p", "no:randomly", "-p", "no:cacheprovider", "-n1", "--regional-backend=aot_eager")
    files = ("--junitxml=junit.xml", "--regional-report=report.json")
    done = run_module("pytest", [*options, *files], pytester.path, os.environ, timeout=300)
    assert "7 passed" in done.stdout, done.stdout
    assert "crashed while" not in done.stdout
    assert "gw0 is retired: test_it.py::test_it[1] left number of threads between operators" in done.stdout
    assert "cannot be restored: number of threads between operators (this worker is retired" in done.stdout
    ran = [line.rsplit(maxsplit=2) for line in Path("ran.txt").read_text().splitlines()]
    assert [what for what, _, _ in ran][:5] == ["0", "1", "torn down", "2", "torn down"]
    assert sorted(what for what, _, _ in ran[5:]) == [*"345", "last", "torn down"]
    assert len({process for _, process, _ in ran}) == 3
    assert len({threads for what, _, threads in ran if what != "torn down"}) == 1
    suite = ElementTree.parse("junit.xml").getroot()[0]
    assert (suite.get("tests"), len(suite.findall("testcase"))) == ("7", 7)
    report = json.loads(Path("report.json").read_text())
    assert [test["outcome"] for test in report["tests"]] == ["passed"] * 7


def test_a_run_without_workers_fails_at_the_test(pytester):
    pytester.makepyfile(test_it=TESTS)
    options = ("-p", "no:randomly", "-p", "no:cacheprovider", "-n0", "--regional-backend=aot_eager")
    done = run_module("pytest", options, pytester.path, os.environ, timeout=300)
    result = pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0)
    result.assert_outcomes(passed=7, errors=1)
    result.stdout.fnmatch_lines(
        ["*UnrestorableStateError: test_it.py::test_it*1* left state that cannot be restored: number of threads*"]
    )
