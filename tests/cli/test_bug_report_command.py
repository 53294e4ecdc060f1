"""``pytest-regional bug-report``: of a finding, of a script, of a failed test; and what cannot be reported."""

from __future__ import annotations

import errno
import os
import re
import sys
import zipfile
from pathlib import Path

import pytest

from pytest_regional.bug_report import gathering, running
from pytest_regional.bug_report.gathering import BugReport
from pytest_regional.bug_report.running import ScriptRun
from pytest_regional.bug_report.scripts import Subject
from pytest_regional.cli import main

FINDING = Path(__file__).with_name("data") / "floor_of_quotient.json"

TEST = """\
import pytest
import torch

pytestmark = pytest.mark.regional_compile(expects_regions=False)

def scaled(x, scale):
    hidden = (x @ x.t()).relu() * 0
    return hidden.softmax(-1) + 1 / torch.nn.functional.elu(scale), x.sum()

def test_scaled(regional):
    regional.assert_parity(scaled, torch.ones(3, 3), torch.tensor([-0.0, 0.0, 1.0]))

def test_right(regional):
    regional.assert_parity(torch.sin, torch.ones(3))

def test_assertion(regional):
    assert False
"""


@pytest.fixture
def environments(tmp_path):
    """An environment that looks as if a release were installed in it: it is the one of this process."""
    python = tmp_path / "environments" / "torch-9.9.9" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (python.parents[1] / "installed").touch()
    return tmp_path / "environments"


class Runner:
    """Runs no script: what does not run eagerly is ``outcome``, with one release right."""

    outcome = "wrong"

    def __init__(self, folder, python=sys.executable):
        self.there = Path(python) == Path(sys.executable)

    def run_until_one_shows(self, scripts, raises=None):
        self.scripts = scripts
        return [ScriptRun(self.outcome)] * (1 if self.outcome == "wrong" else len(scripts))

    def run_each(self, script, changes):
        return [ScriptRun("right" if "eager" in one.backend else self.outcome) for one in changes]

    def run(self, script, changes=None, *, trace=None):
        if trace is not None:
            trace.mkdir()
            (trace / "one.log").touch()
        facts = {
            "same": "fails",
            "parity": "holds",
            "culprit": "lowering of aten.div.Scalar_mode at div",
            "evidence": "-",
        }
        asked = changes is not None and changes.measure and changes.blame_seconds == 20
        return ScriptRun(self.outcome if self.there else "right", facts=facts if asked else {})


@pytest.fixture
def runner(monkeypatch):
    monkeypatch.setattr(running, "ScriptRunner", Runner)
    monkeypatch.setattr(gathering, "_environment", lambda: "PyTorch version: 2.13.0")
    monkeypatch.setattr(Runner, "outcome", "wrong")
    return Runner


@pytest.mark.usefixtures("runner")
def test_what_scripts_say_is_in_the_report(environments, tmp_path):
    output = tmp_path / "report.md"
    asked = ["--torch=9.9.9", f"--environments={environments}", "--trace", "--blame-seconds=20"]

    assert main(["bug-report", str(FINDING), f"--output={output}", *asked]) == 0

    text = output.read_text()
    assert re.search(r"\| `aot_eager_decomp_partition` \| right \|\n\| `inductor` \| wrong", text)
    assert "lowering of aten.div.Scalar_mode at div" in text
    assert "`torch._dynamo.utils.same`, with a float64 run as the reference | fails |" in text
    assert "| 9.9.9 | right |" in text
    assert "`floor_of_quotient`: ``x // 0.1``" in text
    with zipfile.ZipFile(tmp_path / "report.trace.zip") as trace:
        assert trace.namelist() == ["one.log"]


def test_a_script_that_is_right_is_no_report(runner, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "outcome", "right")
    script = tmp_path / "fixed.py"
    script.write_text('"""Something is wrong."""\nprint("fixed")\n')

    assert main(["bug-report", str(script)]) == 1
    said = capsys.readouterr()
    assert said.err == "fixed.py is not reproduced here. What each script did:\nscript 0: right\n"
    assert said.out == ""


@pytest.mark.usefixtures("runner")
def test_a_test_is_run_with_its_options(monkeypatch, capsys):
    def subject_of_test(test, options):
        return Subject(test, f"{test} {options}", "Right.", "", ("sin",), {"inductor": ("import torch  # it\n",)})

    monkeypatch.setattr(running, "subject_of_test", subject_of_test)

    assert main(["bug-report", "test_x.py::test_y", "--options=--regional-seed=3"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# test_x.py::test_y --regional-seed=3\n")
    assert "import torch  # it" in text


@pytest.mark.slow("a script in forty processes", fast="test_what_scripts_say_is_in_the_report")
def test_a_finding(environments, tmp_path, capsys):
    output = tmp_path / "report.md"
    asked = ["--torch=9.9.9", f"--environments={environments}", "--trace", "--blame-seconds=20"]

    assert main(["bug-report", str(FINDING), f"--output={output}", *asked]) == 0

    text = output.read_text()
    script = text.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in script.splitlines() if line]) <= 15
    assert "pytest_regional" not in script
    assert re.search(r"\| `aot_eager_decomp_partition` \| right \|\n\| `inductor` \| wrong", text)
    assert "lowering of aten.div.Scalar_mode at div (script.py:" in text
    assert "| 9.9.9 | wrong" in text
    assert "are wrong." in text
    assert "`floor_of_quotient`: ``x // 0.1``" in text
    assert str(tmp_path) not in text
    with zipfile.ZipFile(tmp_path / "report.trace.zip") as trace:
        assert any(name.endswith(".log") for name in trace.namelist())


@pytest.mark.slow(
    "a test in thirty processes",
    fast="test_a_test_is_run_with_its_options",
)
def test_a_test(tmp_path, monkeypatch, capsys):
    (tmp_path / "test_scaled.py").write_text(TEST)
    monkeypatch.chdir(tmp_path)
    options = "--options=--regional-backend=inductor"

    assert main(["bug-report", "test_scaled.py::test_scaled", options, "--blame-seconds=0"]) == 0

    text = capsys.readouterr().out
    script = text.partition("```python\n")[2].partition("```")[0]
    assert "torch.nn.functional.elu(x0)" in script
    assert "softmax" not in script
    assert "assert_close" in script


@pytest.mark.usefixtures("warm_process")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("test_right", "does not fail here (exit status 0); pytest says: 1 passed"),
        ("test_assertion", "it ends with AssertionError: assert False, not with an error of assert_parity"),
        ("test_missing", "does not fail here (exit status 4)"),
    ],
)
def test_tests_that_cannot_be_reported(name, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "test_scaled.py").write_text(TEST)
    monkeypatch.chdir(tmp_path)

    assert main(["bug-report", f"test_scaled.py::{name}", "--options=--regional-backend=eager"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow("starts processes that import torch", fast="test_a_script_that_is_right_is_no_report")
def test_what_does_not_fail_here(tmp_path, capsys):
    script = tmp_path / "fixed.py"
    script.write_text('"""Something is wrong."""\nprint("fixed")\n')

    assert main(["bug-report", str(script)]) == 1
    assert "fixed.py is not reproduced here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.json"], "missing.json is no finding"),
        (["x.txt"], "x.txt is no finding"),
        ([str(FINDING), "--torch=new"], "'new' is no release"),
        ([str(FINDING), "--trace"], "--trace needs --output"),
        ([str(FINDING), "--output=missing/report.md"], "there is no directory missing"),
        (
            [str(FINDING), "--output=x.txt/report.md"],
            "x.txt/report.md cannot be written: there is no directory x.txt",
        ),
        ([str(FINDING), "--output=."], ". cannot be written: it is a directory or a device; name a file"),
        ([str(FINDING), "--output=/dev/null"], "/dev/null cannot be written: it is a directory or a device"),
        ([str(FINDING), "--output=/proc/report.md"], "/proc/report.md cannot be written: "),
        ([str(FINDING), "--backend=induktor"], "--backend: unknown backend 'induktor'. Did you mean 'inductor'?"),
        ([str(FINDING), "--backend=missing:backend"], "backend 'missing:backend' could not be loaded: ModuleNotFound"),
        (["test_x.py::test_y", "--options=-k 'two"], "cannot be read: No closing quotation"),
        ([str(FINDING), "--findings=."], "broken.json"),
        (["broken.json"], "broken.json cannot be read"),
        (["broken.py"], "broken.py is no Python"),
    ],
)
def test_bad_arguments(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("x.txt", "broken.json", "broken.py"):
        (tmp_path / name).write_text("{(")

    assert main(["bug-report", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "soon", ""])
def test_seconds_that_are_none(seconds, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bug-report", str(FINDING), f"--blame-seconds={seconds}"])

    assert ended.value.code == 2
    assert f"argument --blame-seconds: {seconds!r} is no number of seconds: give 0 or more" in capsys.readouterr().err


@pytest.fixture
def gathered(monkeypatch):
    """A report that takes no time."""

    def gather(subject, runner, **asked):
        return BugReport(subject, "inductor", "", ScriptRun("wrong"), {}, environment="torch")

    monkeypatch.setattr(gathering, "gather", gather)


@pytest.mark.usefixtures("gathered")
def test_an_output_that_cannot_be_written_in_the_end(tmp_path, monkeypatch, capsys):
    """A disk may be full by then."""

    def refuse(path, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", refuse)
    output = tmp_path / "report.md"

    assert main(["bug-report", str(FINDING), f"--output={output}"]) == 2

    said = capsys.readouterr()
    assert f"{output} cannot be written: No space left on device. The report is on standard output." in said.err
    assert said.out.startswith("# torch.compile: ")


def test_an_archive_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    def gather(subject, runner, *, trace, **asked):
        trace.mkdir()
        return BugReport(subject, "inductor", "", ScriptRun("wrong"), {}, environment="torch")

    monkeypatch.setattr(gathering, "gather", gather)
    (tmp_path / "report.trace.zip").mkdir()

    assert main(["bug-report", str(FINDING), f"--output={tmp_path / 'report.md'}", "--trace"]) == 2
    assert f"{tmp_path / 'report.trace.zip'} cannot be written: Is a directory" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "geteuid") or not os.geteuid(), reason="root may write everywhere")
def test_a_directory_without_permission(tmp_path, capsys):
    tmp_path.chmod(0o500)

    assert main(["bug-report", str(FINDING), f"--output={tmp_path / 'report.md'}"]) == 2
    assert "report.md cannot be written: Permission denied" in capsys.readouterr().err


@pytest.mark.usefixtures("gathered")
def test_without_a_trace_there_is_no_archive(tmp_path):
    output = tmp_path / "report.md"

    assert main(["bug-report", str(FINDING), f"--output={output}", "--trace"]) == 0

    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    assert "TORCH_TRACE" not in output.read_text()


def test_its_old_name(capsys):
    assert main(["report", "nowhere.json"]) == 2
    assert "the command is called bug-report" in capsys.readouterr().err
