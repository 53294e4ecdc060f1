"""``new-backend``: what it writes works as it is, and nothing is overwritten."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pytest_regional.command_line import main
from pytest_regional.command_line.new_backend import FILES
from tests.warm_process import run_module


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "my-backend"
    assert main(["new-backend", str(folder)]) == 0
    return folder


def test_every_file_is_there(package):
    written = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert written == {target.format(name="my_backend") for target in FILES.values()}
    for path in written:
        text = (package / path).read_text()
        assert "{{" not in text
        assert "{%" not in text


def test_its_tests_pass_as_written_and_what_it_disclaims_fails(package):
    done = run_module(
        "pytest", ["-p", "no:cacheprovider", "-p", "no:randomly", "--regional-audit"], package, os.environ
    )
    assert "= 4 passed, 1 xfailed" in done.stdout, done.stdout + done.stderr


def test_a_broken_compiler_is_noticed(package, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(package, copy)
    compiler = copy / "my_backend" / "compiler.py"
    text = compiler.read_text()
    assert "return regional_inductor(gm, example_inputs)" in text
    compiler.write_text(text.replace("return regional_inductor(gm, example_inputs)", "return lambda args: gm(*args)"))
    done = run_module(
        "pytest", ["-p", "no:cacheprovider", "-p", "no:randomly", "-k", "the_rest_is_eager"], copy, os.environ
    )
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
