"""``python -m pytest_regional findings DIR``: what a folder of findings holds, without checking it again."""

from __future__ import annotations

import json

import pytest

from pytest_regional.cli import main
from pytest_regional.fuzz.caches.findings import SequenceFinding
from pytest_regional.fuzz.caches.sequences import Compile, Key, Restart
from pytest_regional.fuzz.findings.files import Signature
from pytest_regional.fuzz.findings.folder import Finding, FindingsFolder
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Region, Step

NEGATED = Program((TensorInput((4,)),), (Step("neg", (0,), (), (1,), (Region("a"),)),), (1,), training=False)
SEQUENCE = (Compile(Key()), Restart(), Compile(Key(training=True)))


@pytest.fixture
def folder(tmp_path):
    of_program = Signature("compiles", "compile", "AssertionError at torch.fx.passes")
    of_sequence = Signature("caches", "restart", "a hit where a miss is due", frozenset({"event:restart"}))
    folder = FindingsFolder(tmp_path / "findings")
    about = {"backend": "torch", "mode": "interpret", "versions": {"torch": "2.13.0"}}
    folder.save(Finding(of_program, NEGATED, NEGATED, "cannot be\nput in order", **about))
    folder.save(SequenceFinding(of_sequence, SEQUENCE, SEQUENCE, "1 hit, 0 due", **about))
    return folder


def test_each_finding_has_its_lines(folder, capsys):
    assert main(["findings", str(folder.path)]) == 0

    sequence, program = folder.paths()
    assert capsys.readouterr().out.splitlines() == [
        f"{sequence.stem} (torch, cpu, mode interpret, torch 2.13.0, 3 events)",
        "    caches (restart): a hit where a miss is due (restart)",
        "    1 hit, 0 due",
        f"{program.stem} (torch, cpu, mode interpret, torch 2.13.0, 1 step)",
        "    compiles (compile): AssertionError at torch.fx.passes (neg)",
        "    cannot be",
        "2 findings",
    ]


def test_one_finding_in_full(folder, capsys):
    assert main(["findings", str(folder.paths()[1])]) == 0

    said = capsys.readouterr().out
    assert "    put in order" in said
    assert "    def program(" in said
    assert said.endswith("1 finding\n")


def test_a_sequence_in_full(folder, capsys):
    assert main(["findings", str(folder.paths()[0])]) == 0

    assert "    restart\n" in capsys.readouterr().out


def test_unreadable_files_are_reported_and_the_others_are_listed(folder, capsys):
    (folder.path / "another.json").write_text(json.dumps({"version": 99}))

    assert main(["findings", str(folder.path)]) == 2
    said = capsys.readouterr()
    assert said.out.endswith("2 findings, 1 file that cannot be read\n")
    assert "another.json" in said.err
    assert "version 99" in said.err


@pytest.mark.parametrize(("name", "problem"), [("nowhere", "is not there"), ("", "holds no findings")])
def test_nothing_to_list_is_a_usage_error(tmp_path, capsys, name, problem):
    assert main(["findings", str(tmp_path / name)]) == 2
    assert problem in capsys.readouterr().err
