"""The suites are what a third party would write: they use public names of ``pytest_regional`` alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_regional

SUITES = Path(__file__).parents[1] / "suites"
PUBLIC = {"pytest_regional.testing", "pytest_regional.strategies", "pytest_regional.backends.ordering"}


def imported(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of each import; the name is empty where the module itself is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, node.module or "", alias.name) for alias in node.names)


def is_public(module: str, name: str) -> bool:
    if module.partition(".")[0] != "pytest_regional":
        return True
    if name.startswith("_"):
        return False
    if module == "pytest_regional":
        return not name or name in pytest_regional.__all__ or f"{module}.{name}" in PUBLIC
    return module in PUBLIC or (f"{module}.{name}" in PUBLIC and bool(name))


def violations(text: str) -> list[str]:
    """Return what ``text`` uses of the package and should not: imports, and underscored attributes of ``regional``."""
    tree = ast.parse(text)
    found = [f"line {line}: {module} {name}" for line, module, name in imported(tree) if not is_public(module, name)]
    return found + [
        f"line {node.lineno}: regional.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and isinstance(node.value, ast.Name)
        and node.value.id == "regional"
    ]


@pytest.mark.parametrize(
    "planted",
    [
        "from pytest_regional._torch.ordering import control_deps",
        "from pytest_regional.reference.ordering import add_control_deps",
        "def test(regional):\n    import pytest_regional.reference",
        "from pytest_regional.harness.codegen import CodeAssertionError",
        "from pytest_regional.harness import counters",
        "from pytest_regional import reference",
        "from pytest_regional import Obsever",
        "from pytest_regional.testing import _skip_without",
        "def test(regional):\n    regional._spec.name",
    ],
)
def test_a_violation_is_found(planted):
    assert violations(planted)


@pytest.mark.parametrize(
    "allowed",
    [
        "import torch._dynamo",
        "from .programs import _pair",
        "import pytest_regional",
        "from pytest_regional import CodeAssertionError, region, testing",
        "from pytest_regional.testing import regional",
        "from pytest_regional.backends import ordering",
        "from pytest_regional.backends.ordering import add_control_deps",
        "def test(regional):\n    regional.graphs",
    ],
)
def test_what_is_public_is_not(allowed):
    assert not violations(allowed)


def test_suites_use_public_names():
    texts = {path.relative_to(SUITES).as_posix(): path.read_text(encoding="utf-8") for path in SUITES.rglob("*.py")}
    assert {path: found for path, text in texts.items() if (found := violations(text))} == {}
