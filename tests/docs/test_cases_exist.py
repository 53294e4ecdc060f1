"""Every test that a page names is there: tables of coverage, findings and review points."""

import ast
import re
from functools import cache

import pytest
from fenced import ROOT

NAMED = ("docs/full-graph.md", "docs/coverage.md", "docs/findings/README.md")
_CASE = re.compile(r"`((?:[\w]+/)+\w+\.py)?(?:::(\w+))?`")


@cache
def names_in(path):
    """Return the names of functions and classes of a file."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if hasattr(node, "name")}


def cases(text):
    """Yield file and test of each case; ``::name`` alone goes on with the file before."""
    file = None
    for found in _CASE.finditer(text):
        if found[1] or (found[2] and file):
            file = found[1] or file
            yield file, found[2]


def missing(text):
    for file, name in cases(text):
        path = next((root / file for root in (ROOT, ROOT / "suites") if (root / file).is_file()), None)
        if path is None or (name and name not in names_in(path)):
            yield f"{file}::{name}" if name else file


@pytest.mark.parametrize("page", NAMED)
def test_every_case_is_there(page):
    text = (ROOT / page).read_text()
    assert list(cases(text))
    assert not list(missing(text))


def test_a_case_that_is_gone_is_noticed():
    text = "| a | `tests/docs/test_cases_exist.py::test_every_case_is_there`, `::no_such`, `regions/test_gone.py` |"
    assert list(missing(text)) == ["tests/docs/test_cases_exist.py::no_such", "regions/test_gone.py"]
