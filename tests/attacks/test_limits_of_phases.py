"""A hang, a gluttonous allocation or a crash in any phase of a test, whatever pytest calls what does it.

A new place is a name in ``PLACES`` with the phase that it belongs to, and its code.
"""

from __future__ import annotations

import json
import textwrap
from types import SimpleNamespace

import pytest

from pytest_regional.plugin.phases import PhaseHooks
from pytest_regional.plugin.workers import ReportingErrors
from pytest_regional.report.document import RunReport, merged
from pytest_regional.report.this_run import CollectedFacts, Heartbeat, last_heartbeat
from tests.plugin.conftest import _torch_stays_imported, downstream, in_a_process, repository  # noqa: F401

#: Where code of a user stands: the phase of its test, and the code, with ``{}`` for what it does.
PLACES = {
    "fixture": ("setup", "@pytest.fixture(autouse=True)\ndef one(): {}"),
    "module fixture": ("setup", "@pytest.fixture(autouse=True, scope='module')\ndef one(): {}"),
    "session fixture": ("setup", "@pytest.fixture(autouse=True, scope='session')\ndef one(): {}"),
    "setup_module": ("setup", "def setup_module(): {}"),
    "setup_method": ("setup", "class TestIt:\n    def setup_method(self): {}"),
    "setup_class": ("setup", "class TestIt:\n    @classmethod\n    def setup_class(cls): {}"),
    "setUpClass": ("setup", "class TestIt(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls): {}"),
    "setUp": ("call", "class TestIt(unittest.TestCase):\n    def setUp(self): {}"),
    "tearDown": ("call", "class TestIt(unittest.TestCase):\n    def tearDown(self): {}"),
    "fixture's end": ("teardown", "@pytest.fixture(autouse=True)\ndef one():\n    yield\n    {}"),
    "finalizer": ("teardown", "@pytest.fixture(autouse=True)\ndef one(request):\n    request.addfinalizer(lambda: {})"),
    "session fixture's end": (
        "teardown",
        "@pytest.fixture(autouse=True, scope='session')\ndef one():\n    yield\n    {}",
    ),
    "teardown_method": ("teardown", "class TestIt:\n    def teardown_method(self): {}"),
    "teardown_module": ("teardown", "def teardown_module(): {}"),
}

HEAD = """
import os, time, unittest
import pytest, torch

def hang(): time.sleep(60)

def take(): return torch.empty(3 * 2**30, dtype=torch.uint8)  # never touched: only asked for
"""

TEST = """
@pytest.mark.regional_compile(expects_regions=False)
def test_it({}): pass
"""


def module(place: str, does: str) -> str:
    """Return the source of a module with one test, and ``does`` at ``place``."""
    code = PLACES[place][1].format(does)
    if code.startswith("class"):
        return f"{HEAD}\n{code}\n{textwrap.indent(TEST.format('self'), '    ')}"
    return f"{HEAD}\n{code}\n{TEST.format('')}"


def modules(pytester, does, places=PLACES):
    """Write a module with a test for each place, and one with a test that comes last."""
    for number, place in enumerate(places):
        pytester.makepyfile(**{f"test_{number:02}": module(place, does)})
    pytester.makepyfile(test_99=HEAD + TEST.format(""))


def endings(pytester):
    """Return the outcome and the phase of each place's test from the report."""
    tests = json.loads((pytester.path / "out.json").read_text())["tests"]
    by_module = {fact["test"].partition(".py")[0]: (fact["outcome"], fact.get("phase")) for fact in tests}
    found = {place: by_module[f"test_{number:02}"] for number, place in enumerate(PLACES)}
    assert found["session fixture's end"] == ("passed", None)
    return {**found, "session fixture's end": by_module["test_99"]}  # it goes with the last test


def expected(in_call, else_where):
    return {place: (in_call if phase == "call" else else_where, phase) for place, (phase, _) in PLACES.items()}


OPTIONS = ("--regional-backend=aot_eager", "--regional-report=out.json")


def test_a_hang(downstream, pytester):  # noqa: F811
    modules(pytester, "hang()")
    result = downstream("", *OPTIONS, "--regional-timeout=1.5")
    assert endings(pytester) == expected("failed", "error")
    result.stdout.fnmatch_lines(["*still running after --regional-timeout=1.5 seconds of setup*"])
    result.stdout.fnmatch_lines(["*still running after --regional-timeout=1.5 seconds of teardown*"])
    text = result.stdout.str()
    assert text.count("in hang\n") >= len(PLACES)
    assert "call_fixture_func" not in text.partition("Thread MainThread")[2].partition("___")[0]


def test_too_much_memory(downstream, pytester):  # noqa: F811
    modules(pytester, "take()")
    result = downstream("", *OPTIONS, "-oregional_memory=1G")
    assert endings(pytester) == expected("failed", "error")
    result.stdout.fnmatch_lines(["*regional_memory lets a test take 1 GiB*"])


def test_within_the_limits(downstream, pytester):  # noqa: F811
    modules(pytester, "time.sleep(0.01)")
    downstream("", *OPTIONS, "--regional-timeout=60", "-oregional_memory=8G")
    assert endings(pytester) == dict.fromkeys(PLACES, ("passed", None))


#: What ends the process, the phase that it stands in, and the test.
CRASHES = {
    "in setup": ("setup", "@pytest.fixture\ndef one(): os._exit(0)"),
    "in a session's setup": ("setup", "@pytest.fixture(scope='session')\ndef one(): os.abort()"),
    "in teardown": ("teardown", "@pytest.fixture\ndef one():\n    yield\n    os._exit(0)"),
    "stuck in teardown": ("teardown", "@pytest.fixture\ndef one():\n    yield\n    all(itertools.repeat(True))"),
}

SHORT_GRACE = """
from pytest_regional._base import limits

limits.GRACE = 1
"""


@pytest.mark.slow("four workers die", fast="test_a_crash_is_reported_with_its_phase_and_is_worse")
def test_a_crash_with_xdist(pytester):
    pytester.makeconftest(SHORT_GRACE)
    for number, (_, fixture) in enumerate(CRASHES.values()):
        pytester.makepyfile(**{f"test_{number}": f"{HEAD}import itertools\n{fixture}\n{TEST.format('one')}"})
        pytester.makepyfile(**{f"test_{number}_behind": HEAD + TEST.format("")})
    done = in_a_process(
        pytester, "-n1", *OPTIONS, "--regional-timeout=2", "-p", "no:randomly", "-p", "no:cacheprovider"
    )
    tests = json.loads((pytester.path / "out.json").read_text())["tests"]
    found = {fact["test"].partition(".py")[0]: (fact["outcome"], fact.get("phase")) for fact in tests}
    for number, (name, (phase, _)) in enumerate(CRASHES.items()):
        assert found[f"test_{number}"] == ("crashed", phase), name
        assert found[f"test_{number}_behind"] == ("passed", None), name
    done.stdout.fnmatch_lines(["0 *1 crashed*", "crashed in its setup: test_0.py::test_it*"])
    assert "in one" in done.stderr.str() + done.stdout.str()  # where it was stuck


def collected(*reports):
    facts = CollectedFacts()
    for report in reports:
        facts.note(report)
    return facts.facts


def report(when, outcome="passed", **attributes):
    made = pytest.TestReport("test_it.py::test", ("test_it.py", 1, "test"), {}, outcome, None, when)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


KNOWN = {
    "version": 1,
    "test": "test_it.py::test",
    "suite": "it",
    "backend": "reference",
    "device": "cpu",
    "requires": [],
    "counters": {},
    "worst_parity": None,
    "compile_seconds": 0.0,
    "slowest_compiles": [],
    "causes": {},
    "fuzz": None,
    "details": None,
}
TOLD = {"regional_facts": KNOWN}


@pytest.mark.parametrize(
    ("phase", "before"),
    [
        ("setup", []),
        ("call", [report("setup", **TOLD)]),
        ("teardown", [report("setup", **TOLD), report("call", **TOLD)]),
        ("setup", [report("setup", **TOLD), report("call", "rerun", **TOLD), report("teardown", **TOLD)]),
    ],
)
def test_a_crash_is_reported_with_its_phase_and_is_worse(tmp_path, phase, before):
    note_folder = tmp_path / "notes"
    note = Heartbeat(note_folder, "gw0")
    note.begin("test_it.py::test", KNOWN)
    note.phase(phase)
    node = SimpleNamespace(gateway=SimpleNamespace(id="gw0"))
    died = report("???", "failed", node=node)
    session = SimpleNamespace(scratch_dir=note_folder, folder=SimpleNamespace(name="main"), errors=ReportingErrors())
    controller = PhaseHooks(session)
    controller.pytest_testnodedown(node)
    controller.pytest_handlecrashitem("test_it.py::test", died, None)
    assert not session.errors
    [fact] = collected(*before, died)
    assert (fact["outcome"], fact["phase"]) == ("crashed", phase)
    passed = {**KNOWN, "outcome": "passed", "failure": ""}
    assert merged([RunReport("", {}, {}, {}, [one]) for one in (passed, fact)]).tests == [fact]


@pytest.mark.parametrize("text", [None, "", "{"])
def test_a_heartbeat_that_is_not_whole_is_none(tmp_path, text):
    Heartbeat(tmp_path, "gw0")
    if text is not None:
        (tmp_path / "heartbeat-gw0.json").write_text(text)
    assert last_heartbeat(tmp_path, "gw0") is None


def test_a_crash_of_a_test_that_had_not_begun_is_none_of_ours():
    assert collected(report("???", "failed")) == []
