"""``pytest-regional bisect-version``: the table, the conclusion, and what is no finding, release or directory."""

from __future__ import annotations

import subprocess
import sys
import venv

import pytest

from pytest_regional.cli import main

SCRIPT = "import sys, torch\nprint('torch', torch.__version__)\nsys.exit({})\n"


@pytest.fixture
def environments(tmp_path):
    """Environments that look as if 2.11.0, 2.13.0 and 2.15.0 were installed in them."""
    for version in ("2.11.0", "2.13.0", "2.15.0"):
        folder = tmp_path / "environments" / f"torch-{version}"
        (folder / "torch").mkdir(parents=True)
        (folder / "torch" / "__init__.py").write_text(f"__version__ = {version!r}\n")
        (folder / "bin").mkdir()
        python = folder / "bin" / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        (folder / "installed").touch()
    return tmp_path / "environments"


def bisect(environments, finding, versions="2.11.0,2.13.0,2.15.0", *arguments):
    return main(["bisect-version", str(finding), f"--torch={versions}", f"--environments={environments}", *arguments])


def test_the_first_bad_release(environments, tmp_path, capsys):
    script = tmp_path / "finding.py"
    script.write_text(SCRIPT.format("torch.__version__ == '2.13.0'"))

    assert bisect(environments, script) == 1

    assert capsys.readouterr().out.splitlines() == [
        "2.11.0       right        torch 2.11.0",
        "2.13.0       wrong        torch 2.13.0",
        "2.15.0       right        torch 2.15.0",
        "first bad release: 2.13.0. It came with 2.13.0 (not in 2.11.0), and is gone since 2.15.0 (still in 2.13.0)",
    ]


def test_a_finding_is_replayed(environments, tmp_path, capsys, monkeypatch):
    asked = []

    def run(command, **options):
        asked.append(command[1:])
        return subprocess.CompletedProcess(command, 1, "still fails a-finding: value of output\n1 finding: 1\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    finding = tmp_path / "a-finding.json"
    finding.write_text("{}")

    assert bisect(environments, finding, "2.13.0", "--backend=inductor") == 1

    assert asked == [["-m", "pytest_regional", "replay", str(finding), "--backend", "inductor"]]
    assert "2.13.0       wrong        still fails a-finding: value of output" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("statuses", "sentence"),
    [
        ((1, 1, 0), "first bad release: 2.11.0 or earlier. It is gone since 2.15.0 (still in 2.13.0)"),
        ((0, 2, 1), "first bad release: 2.15.0. It came with 2.15.0 (not in 2.11.0)"),
        ((0, 0, 0), "all releases that were checked are right"),
        ((1, 1, 1), "all releases that were checked are wrong"),
        ((2, 2, 2), "no release could be checked"),
    ],
)
def test_conclusions(environments, tmp_path, capsys, monkeypatch, statuses, sentence):
    left = list(statuses)
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, left.pop(0), "said", "")
    )
    script = tmp_path / "finding.py"
    script.write_text("")
    bisect(environments, script)
    assert capsys.readouterr().out.splitlines()[-1] == sentence


def test_a_release_that_could_not_be_checked(environments, tmp_path, capsys):
    script = tmp_path / "finding.py"
    script.write_text("raise SystemExit(3)")

    assert bisect(environments, script, "2.13.0") == 2

    assert "2.13.0       not checked  nothing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("finding", "versions", "arguments", "said"),
    [
        ("missing.json", "2.13.0", (), "missing.json is no finding"),
        ("a.txt", "2.13.0", (), "a.txt is no finding"),
        ("a.py", "2.13.0,newest", (), "'newest' is no release; give them as 2.11.0,2.13.0"),
        ("a.py", "2.13.0", ("--wheels=nowhere",), "nowhere is no directory of wheels"),
    ],
)
def test_usage(environments, tmp_path, capsys, monkeypatch, finding, versions, arguments, said):
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "a.txt"):
        (tmp_path / name).write_text("")
    assert bisect(environments, finding, versions, *arguments) == 2
    assert said in capsys.readouterr().err


def test_an_environment_is_made_once(tmp_path, monkeypatch):
    """PyTorch comes first and exactly, then this package; an interrupted one is made again."""
    commands = []

    def run(command, **options):
        if "install" in command:
            commands.append(command[command.index("install") :])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(venv, "create", lambda folder, **options: folder.mkdir(exist_ok=True, parents=True))
    monkeypatch.setattr(subprocess, "run", run)
    script = tmp_path / "finding.py"
    script.write_text("")
    kept = tmp_path / "kept"
    for _ in range(2):
        assert bisect(kept, script, "2.13.0", f"--wheels={tmp_path}") == 0
    assert [command[-1] for command in commands] == ["torch==2.13.0"] * 2
    assert all("--find-links" in command for command in commands)
    assert any("pytest" in part or part.startswith("/") for part in commands[1][:-1])
    (kept / "torch-2.13.0" / "installed").unlink()
    assert bisect(kept, script, "2.13.0") == 0
    assert len(commands) == 4


def test_what_pip_cannot_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(venv, "create", lambda folder, **options: folder.mkdir(exist_ok=True, parents=True))
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", "a\nno match")
    )
    script = tmp_path / "finding.py"
    script.write_text("")
    assert bisect(tmp_path / "none", script, "9.9.9") == 2
    assert "torch 9.9.9 cannot be installed into" in (said := capsys.readouterr().err)
    assert "no match" in said
