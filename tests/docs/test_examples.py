"""The example repositories: what their CI files run exists, and ``tools/examples`` runs just that.

That their tests pass against the built wheel is what ``make examples`` shows.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util

import pytest
from docs_runner import check_command, run_pytest
from fenced import DOCS, ROOT, table

EXAMPLES = sorted(path for path in (DOCS / "examples").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def script():
    loader = importlib.machinery.SourceFileLoader("examples_script", str(ROOT / "tools" / "examples"))
    spec = importlib.util.spec_from_loader("examples_script", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pytest_help(tmp_path_factory):
    return run_pytest(["--help"], tmp_path_factory.mktemp("help")).stdout


def test_the_page_names_all_of_them():
    named = [row[0].partition("]")[0].lstrip("[") for row in table("docs/examples.md", "Examples")]
    assert sorted(named) == [path.name for path in EXAMPLES]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_commands_of_the_ci_file_exist(example, script, pytest_help):
    commands = script.commands_of(example / ".github" / "workflows" / "tests.yml")
    assert 'pip install -e ".[test]"' in commands
    assert any(command.startswith("pytest -n 2 --regional-report=") for command in commands)
    for command in commands:
        check_command(command, example.name, pytest_help)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_it_is_a_whole_repository(example):
    files = {str(path.relative_to(example)) for path in example.rglob("*") if path.is_file()}
    assert {"README.md", "pyproject.toml", ".github/workflows/tests.yml"} <= files
    assert any(name.startswith("tests/test_") for name in files)


def test_nightly_tests_are_not_run(script, tmp_path):
    workflow = tmp_path / "tests.yml"
    workflow.write_text(
        "steps:\n"
        "  - run: pip install torch==2.13.0\n"
        "  - run: pytest -n 2\n"
        "  - if: github.event_name == 'schedule'\n"
        "    run: pytest --regional-fuzz=nightly\n"
    )
    assert script.commands_of(workflow) == ["pytest -n 2"]


def test_a_command_that_fails_is_named(script, tmp_path):
    environment = tmp_path / "bin"
    environment.mkdir()
    (environment / "python").write_text('#!/bin/sh\n[ "$2" = fine ] || [ "$2" = two_words ]\n')
    (environment / "python").chmod(0o755)
    assert script.run(["fine", "-q"], tmp_path, tmp_path, required=False) == []
    assert script.run(["two-words"], tmp_path, tmp_path, required=False) == []  # as the module is called
    assert script.run(["wrong", "-q"], tmp_path, tmp_path, required=False) == ["wrong -q"]
    with pytest.raises(SystemExit, match="failed: wrong"):
        script.run(["wrong"], tmp_path, tmp_path)


def test_commands_run_with_pinned_packages_and_nothing_of_an_outer_run(script):
    given = {"PATH": "/bin", "PYTEST_ADDOPTS": "-x", "PYTHONPATH": "/somewhere", "PIP_INDEX_URL": "mine"}
    environment = script.variables(given)
    assert {name for name in environment if not name.startswith("PIP_")} == {"PATH"}
    assert environment["PIP_INDEX_URL"] == "mine"
    assert environment["PIP_CONSTRAINT"] == str(ROOT / "constraints.txt")
