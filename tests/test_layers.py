"""Which module may import which: the contracts of ``pyproject.toml`` hold, and each is seen to be broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import networkx as nx
import pytest

pytest.importorskip("importlinter")
grimp = pytest.importorskip("grimp")

ROOT = Path(__file__).resolve().parent.parent

PLANTED = {
    "harness": ("import pytest_regional.report", "pytest_regional.harness.planted -> pytest_regional.report"),
    "_torch": ("import pytest_regional.reference", "pytest_regional._torch.planted -> pytest_regional.reference"),
    "emulation": ("import pytest", "pytest_regional.emulation.planted -> pytest"),
    "fuzz": (
        "def late():\n    import pytest_regional.reference.ordering",
        "pytest_regional.fuzz.planted -> pytest_regional.reference.ordering",
    ),
}


def lint(folder: Path) -> tuple[int, str]:
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    command = [sys.executable, "-c", program, "--no-cache", "--config", str(folder / "pyproject.toml")]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return result.returncode, " ".join((result.stdout + result.stderr).split())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for path in (ROOT / "pytest_regional").rglob("*.py"):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold() -> None:
    code, output = lint(ROOT)
    assert code == 0, output
    assert "0 broken" in output


def test_planted_imports_break_them(copy: Path) -> None:
    for folder, (text, _) in PLANTED.items():
        (copy / "pytest_regional" / folder / "planted.py").write_text(text + "\n")
    code, output = lint(copy)
    assert code == 1
    assert "3 broken" in output
    for _, found in PLANTED.values():
        assert found in output


def cycles(imports: Iterable[tuple[str, str]]) -> list[set[str]]:
    return [found for found in nx.strongly_connected_components(nx.DiGraph(imports)) if len(found) > 1]


def test_no_modules_import_each_other() -> None:
    """Also where the import is inside of a function."""
    graph = grimp.build_graph("pytest_regional", exclude_type_checking_imports=True, cache_dir=None)
    imports = [(one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)]
    assert len(imports) > 1000
    assert cycles(imports) == []
    one, other = imports[0]
    assert {one, other} <= set().union(*cycles([*imports, (other, one)]))
