"""Idioms that readers asked to have no more, and that no lint rule finds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def _is_condition(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "bool"
    return isinstance(node, ast.Compare | ast.BoolOp) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


def _has_words(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and any(map(str.isalpha, node.value))


def found_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        if product and any(_is_condition(one) or _has_words(one) for one in (node.left, node.right)):
            yield f"line {node.lineno}: a product with a condition; write it as one: A if CONDITION else B"
        if isinstance(node, ast.arguments) and node.kwarg and node.kwarg.arg == "unknown":
            yield f"line {node.kwarg.lineno}: **unknown hides misspelt keywords from mypy; declare the keywords"


def test_no_module_has_them():
    files = sorted((ROOT / "pytest_regional").rglob("*.py"))
    assert len(files) > 200
    assert [f"{file.relative_to(ROOT)}, {said}" for file in files for said in found_in(file.read_text())] == []


@pytest.mark.parametrize(
    "source", ["'-' * (n > 1)", "'words' * is_so", "bool(x) * 3", "f'{2 * (not x)}'", "def f(**unknown): pass"]
)
def test_each_is_found(source):
    assert len(list(found_in(source))) == 1


def test_products_are_allowed():
    assert list(found_in("'-' * width; 2 * len(x); def_ = [0] * n")) == []
