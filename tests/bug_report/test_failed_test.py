"""Scripts of failing tests, and what cannot be made one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.bug_report import running
from pytest_regional.bug_report.running import ScriptRunner, subject_of_test

pytestmark = pytest.mark.usefixtures("warm_process")

TEST = """\
import pytest
import torch
from torch.fx.traceback import annotate

pytestmark = pytest.mark.regional_compile(expects_regions=False)

def program(x):
    hidden = x.cos()
    with annotate({"compile_with_inductor": "a"}):
        return hidden.sin()

def test_program(regional):
    regional.assert_parity(program, torch.ones(3))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "test_own.py").write_text(TEST)
    (tmp_path / "own.py").write_text("def wrong(gm, inputs):\n    return lambda *x: [one + 1 for one in gm(*x)]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    return tmp_path


def test_a_backend_of_somebodys_own_is_imported_and_keeps_annotations(folder):
    subject = subject_of_test("test_own.py::test_program", "--regional-backend=own:wrong -p no:cacheprovider")

    assert list(subject.scripts) == ["inductor", "torch", "own:wrong"]
    script = subject.scripts["own:wrong"][0]
    assert "annotate" in script
    assert "annotate" not in subject.scripts["inductor"][0]
    with pytest.raises(AssertionError, match="not close"):
        exec(script, {"__name__": "__main__"})


BROKEN = """\
import pytest
import torch

pytestmark = pytest.mark.regional_compile(expects_regions=False, fullgraph=False)

def program(x):
    hidden = x.cos()
    torch._dynamo.graph_break()
    return hidden.exp().sin() + hidden

def test_program(regional):
    regional.assert_parity(program, torch.ones(3))
"""
WRONG_SINES = """\
def wrong(gm, inputs):
    has_sine = any("sin" == node.target for node in gm.graph.nodes)
    return lambda *x: [one + has_sine for one in gm(*x)]
"""


def test_of_several_graphs_the_one_that_fails_is_reduced(folder):
    (folder / "test_own.py").write_text(BROKEN)
    (folder / "own.py").write_text(WRONG_SINES)

    subject = subject_of_test("test_own.py::test_program", "--regional-backend=own:wrong -p no:cacheprovider")

    script = subject.scripts["own:wrong"][0]
    assert "x0.sin()" in script
    assert not {"cos()", "exp()", "+ "} & set(script.split("def inputs")[0].split())
    with pytest.raises(AssertionError, match="not close"):
        exec(script, {"__name__": "__main__"})


CRASH = """\
import pytest
import torch

pytestmark = pytest.mark.regional_compile(expects_regions=False)

def program(x, index, values):
    return x.scatter(0, index, values)

def test_crash(regional):
    regional.assert_parity(program, regional.randn(4), torch.empty(0), regional.randn(4))

class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 100

def wrong(x):
    return torch.func.grad(lambda t: Wrong.apply(t).sum())(x)

def test_capture(regional):
    regional.assert_parity(wrong, regional.randn(6))
"""


def test_a_crash_is_the_same_if_class_and_cause_are(folder, tmp_path):
    """Its message names file, line and buffers of the test."""
    (tmp_path / "test_own.py").write_text(CRASH)
    subject = subject_of_test("test_own.py::test_crash", "--regional-backend=inductor -p no:cacheprovider")
    assert subject.raises == "LoweringException: AssertionError"
    runs = ScriptRunner(tmp_path / "runs").run_until_one_shows(subject.scripts["inductor"], subject.raises)
    assert subject.raises in runs[-1].said


def test_a_graph_that_is_wrong_already(folder, tmp_path):
    (tmp_path / "test_own.py").write_text(CRASH)
    with pytest.raises(RegionalValueError, match="Dynamo's graph of it is wrong already when it runs eagerly"):
        subject_of_test("test_own.py::test_capture", "--regional-backend=aot_eager -p no:cacheprovider")


def test_several_graphs_of_which_none_fails_alone(folder):
    """The second graph is wrong once only."""
    (folder / "test_own.py").write_text(BROKEN)
    (folder / "own.py").write_text(
        "def wrong(gm, inputs):\n    wrong.graphs += 1\n    added = wrong.graphs == 2\n"
        "    return lambda *x: [one + added for one in gm(*x)]\n\nwrong.graphs = 0\n"
    )

    with pytest.raises(RegionalValueError, match="Dynamo makes 2 graphs of the program, and none of them fails alone"):
        subject_of_test("test_own.py::test_program", "--regional-backend=own:wrong -p no:cacheprovider")


def test_a_graph_break_that_is_not_allowed(folder):
    (folder / "test_own.py").write_text(BROKEN.replace(", fullgraph=False", ""))

    with pytest.raises(RegionalValueError, match=r"its graph cannot be captured: Unsupported: .*graph_break"):
        subject_of_test("test_own.py::test_program", "--regional-backend=own:wrong -p no:cacheprovider")


def test_options_that_no_shell_reads():
    with pytest.raises(RegionalValueError, match=r"--options=\"-k 'two\" cannot be read: No closing quotation"):
        subject_of_test("test_own.py::test_program", "-k 'two")


def test_a_test_that_takes_too_long(folder, monkeypatch):
    (folder / "test_own.py").write_text("import time\n\ndef test_program():\n    time.sleep(60)\n")
    monkeypatch.setattr(running, "_SECONDS", 2.0)

    with pytest.raises(RegionalValueError, match=r"test_own.py::test_program did not end within 2 s.* a script"):
        subject_of_test("test_own.py::test_program")


def test_where_the_answer_goes_is_said_once():
    sources = Path(running.__file__).parents[1].rglob("*.py")
    assert sum(source.read_text(encoding="utf-8").count(running.ANSWER_VARIABLE) for source in sources) == 1
