"""Which module may import which: the contracts of ``pyproject.toml`` hold, and each is seen to be broken."""

from __future__ import annotations

import ast
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


#: Imports inside of functions, at most: start-up without torch, optional parts. May only fall.
MOST_LATE_IMPORTS = 77


def late_imports(text: str) -> list[int]:
    """Return the lines of imports that are not at the top of a module; those for type checkers alone don't count."""
    tree = ast.parse(text)
    early = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            early |= {id(below) for below in ast.walk(node)}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) not in early
    ]


def test_few_imports_are_inside_of_functions() -> None:
    assert late_imports("import a\nif TYPE_CHECKING:\n    import b\ndef f():\n    import c") == [5]
    found = {
        path.relative_to(ROOT).as_posix(): late_imports(path.read_text(encoding="utf-8"))
        for path in (ROOT / "pytest_regional").rglob("*.py")
    }
    assert sum(map(len, found.values())) <= MOST_LATE_IMPORTS, {path: lines for path, lines in found.items() if lines}


def not_on_the_map(package: Path) -> list[str]:
    """Return the modules and packages in ``package`` that the docstring of its ``__init__`` does not name."""
    names = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    return sorted(name for name in names - {"__init__"} if f"``{name}``" not in text)


def test_each_package_has_a_map(tmp_path: Path) -> None:
    """The first docstring that a newcomer reads names all modules, and says what the package may import."""
    (tmp_path / "__init__.py").write_text('"""A map of ``one``."""')
    (tmp_path / "one.py").touch()
    (tmp_path / "other.py").touch()
    assert not_on_the_map(tmp_path) == ["other"]
    packages = [path.parent for path in (ROOT / "pytest_regional").rglob("*/__init__.py")]
    assert {package.name: missing for package in packages if (missing := not_on_the_map(package))} == {}
    without = [
        path.parent.name
        for path in (ROOT / "pytest_regional").glob("*/__init__.py")
        if "may import" not in " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split()).lower()
    ]
    assert without == []
