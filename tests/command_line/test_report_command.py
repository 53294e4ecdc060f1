"""``pytest-regional report``: of a finding, of a script, of a failed test; and what cannot be reported."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import pytest

from pytest_regional.command_line import main

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


def test_a_finding(environments, tmp_path, capsys):
    output = tmp_path / "report.md"
    asked = ["--torch=9.9.9", f"--environments={environments}", "--trace", "--blame-seconds=20"]

    assert main(["report", str(FINDING), f"--output={output}", *asked]) == 0

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


def test_a_test(tmp_path, monkeypatch, capsys):
    (tmp_path / "test_scaled.py").write_text(TEST)
    monkeypatch.chdir(tmp_path)
    options = "--options=--regional-backend=inductor"

    assert main(["report", "test_scaled.py::test_scaled", options, "--blame-seconds=0"]) == 0

    text = capsys.readouterr().out
    script = text.partition("```python\n")[2].partition("```")[0]
    assert "torch.nn.functional.elu(x0)" in script
    assert "softmax" not in script
    assert "assert_close" in script


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

    assert main(["report", f"test_scaled.py::{name}", "--options=--regional-backend=eager"]) == 2
    assert said in capsys.readouterr().err


def test_what_does_not_fail_here(tmp_path, capsys):
    script = tmp_path / "fixed.py"
    script.write_text('"""Something is wrong."""\nprint("fixed")\n')

    assert main(["report", str(script)]) == 1
    assert "fixed.py is not reproduced here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.json"], "missing.json is no finding"),
        (["x.txt"], "x.txt is no finding"),
        ([str(FINDING), "--torch=new"], "'new' is no release"),
        ([str(FINDING), "--trace"], "--trace needs --output"),
        ([str(FINDING), "--output=missing/report.md"], "there is no directory missing"),
        ([str(FINDING), "--findings=."], "broken.json"),
        (["broken.json"], "broken.json cannot be read"),
        (["broken.py"], "broken.py is no Python"),
    ],
)
def test_bad_arguments(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("x.txt", "broken.json", "broken.py"):
        (tmp_path / name).write_text("{(")

    assert main(["report", *arguments]) == 2
    assert said in capsys.readouterr().err
