"""``new-backend``: what it writes works as it is, and nothing is overwritten."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from pytest_regional.cli import main
from tests.warm_process import ROOT, run_module


@pytest.fixture(scope="module", params=[[], ["--whole-graph"]], ids=["regions", "whole_graph"])
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "my-backend"
    assert main(["new-backend", str(folder), *request.param]) == 0
    return folder


def compiles_regions(package):
    return "split_regions" in (package / "my_backend" / "compiler.py").read_text()


def test_every_file_is_there(package):
    written = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert written == {
        "README.md",
        "pyproject.toml",
        "known-failures.txt",
        "my_backend/__init__.py",
        "my_backend/compiler.py",
        "my_backend/conformance.py",
        "tests/test_my_backend.py",
        ".github/workflows/tests.yml",
    }
    for path in written:
        text = (package / path).read_text()
        assert "{{" not in text
        assert "{%" not in text


def run_tests(package, *arguments):
    return run_module("pytest", ["-p", "no:cacheprovider", "-p", "no:randomly", *arguments], package, os.environ)


def test_its_tests_pass_as_written_and_what_it_disclaims_fails(package):
    done = run_tests(package, "--regional-audit")
    expected = "= 4 passed, 1 xfailed" if compiles_regions(package) else "= 3 passed in"
    assert expected in done.stdout, done.stdout + done.stderr


def test_the_suites_pass_as_written(package):
    """Those about how regions are taken apart, and what is asked of annotations; all of them take minutes."""
    files = [str(ROOT / "suites" / "regions" / f"test_{name}.py") for name in ("partition_counts", "annotation_errors")]
    done = run_tests(package, "-c", "pyproject.toml", *files)
    expected = "= 11 passed, 12 skipped" if compiles_regions(package) else "= 23 skipped"
    assert expected in done.stdout, done.stdout + done.stderr


def test_a_backend_without_regions_is_noticed(package, tmp_path):
    if not compiles_regions(package):
        pytest.skip("there are none to begin with")
    copy = tmp_path / "copy"
    shutil.copytree(package, copy)
    compiler = copy / "my_backend" / "compiler.py"
    text = compiler.read_text()
    assert "    if not regions:" in text
    compiler.write_text(text.replace("    if not regions:", "    if regions:"))
    done = run_tests(copy, "-k", "the_rest_is_eager")
    assert "= 1 failed" in done.stdout, done.stdout


def test_its_code_is_in_order(package):
    for command in (["check", "--select", "E,F,W,I,UP,B,C4,SIM,PT,RUF"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--line-length=120", "--isolated", str(package)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("1st", (), "'1st' cannot be the name of a package; give another with --name"),
        ("fine", ("--name", "class"), "'class' cannot be the name of a package"),
        (".", (), "is there and not empty; give a new folder"),
    ],
)
def test_what_cannot_be(tmp_path, capsys, monkeypatch, name, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("kept")
    arguments = arguments if name != "." else ("--name", "fine")
    assert main(["new-backend", name, *arguments]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
