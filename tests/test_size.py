"""``tools/size``: packages keep to the budget of lines and files, which is raised with a reason only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "size"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a package of 300 lines in one file, as its budget says."""
    _lines(tmp_path, 300)
    _budget(tmp_path, "pytest_regional/fuzz 300 1")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def _lines(root: Path, count: int) -> None:
    path = root / "pytest_regional" / "fuzz" / "program.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("pass\n" * count)


def _budget(root: Path, row: str) -> None:
    (root / "size-budget.txt").write_text(f"# Lines and files.\n{row}\n")


def _size(root: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, str(SCRIPT), "--root", str(root), "--since", "HEAD", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_package_within_its_budget(repository: Path) -> None:
    _lines(repository, 290)
    status, said = _size(repository)
    assert status == 0
    assert "pytest_regional/fuzz             +0    -10     -10" in said
    assert "the package: 290 lines in 1 files" in said


@pytest.mark.parametrize(
    ("lines", "row", "said"),
    [
        (
            301,
            "pytest_regional/fuzz 300 1",
            "has 301 lines in 1 files, its budget is 300 in 1: make it smaller, or raise",
        ),
        (
            300,
            "pytest_regional/fuzz 300 0",
            "has 300 lines in 1 files, its budget is 300 in 0: make it smaller, or raise",
        ),
        (300, "# none", "its budget is 0 in 0: make it smaller"),
        (99, "pytest_regional/fuzz 300 1", "its budget is still 300 in 1: run tools/size --write"),
        (301, "pytest_regional/fuzz 301 1", "raised from 300 lines in 1 files without saying why"),
        (300, "pytest_regional/fuzz 300 1\nbench 5 1", "bench is new in size-budget.txt: say why it is needed"),
        (300, "pytest_regional/fuzz many", "size-budget.txt:2: expected 'package lines files why'"),
    ],
)
def test_what_fails(repository: Path, lines: int, row: str, said: str) -> None:
    _lines(repository, lines)
    _budget(repository, row)
    assert _size(repository)[0] == 1
    assert said in _size(repository)[1]


def test_a_raise_with_a_reason(repository: Path) -> None:
    _lines(repository, 301)
    _budget(repository, "pytest_regional/fuzz 301 1 A new oracle.")
    assert _size(repository)[0] == 0


def test_writing_lowers_the_budget(repository: Path) -> None:
    _lines(repository, 10)
    assert _size(repository, "--write")[0] == 0
    text = (repository / "size-budget.txt").read_text().split()
    assert text[-3:] == ["pytest_regional/fuzz", "10", "1"]
    _lines(repository, 11)
    assert _size(repository, "--write")[0] == 1
