"""``pytest-regional backends``: what there is to test, without a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm_process import ran


@pytest.fixture
def backends(pytester):
    def run(*names: str) -> pytest.RunResult:
        return ran("pytest_regional", ["backends", *names], pytester.path, os.environ)

    return run


def test_built_in_backends_and_one_that_is_named(backends, pytester):
    pytester.makepyfile(
        mine="""
        from pytest_regional import BackendSpec, declared, unsupported

        specification = BackendSpec("mine", lambda: "aot_eager", declared(rng=unsupported("no seeds are kept"))())
        """,
        test_it="assert False, 'imported'",
    )
    result = backends("mine:specification")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "reference  (built in)",
            "    claims * of * capabilities",
            "    - nested_region_options: *",
            "torch  (built in)",
            "    - share_identical: every partition is compiled on its own",
            "mine:specification  (named by --regional-backend or regional_backend)",
            "    - rng: no seeds are kept",
        ]
    )


def test_one_that_cannot_be_loaded_is_listed_with_the_others(backends):
    result = backends("nowhere:backend")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["reference  (built in)", "nowhere:backend*", "    cannot be used: *No module named 'nowhere'*"]
    )


def test_disclaimers_of_the_repository_are_listed(backends, pytester):
    pytester.makepyprojecttoml(
        """
        [tool.pytest-regional.backends.reference.disclaims]
        rng = "not on our GPUs"
        """
    )
    backends().stdout.fnmatch_lines(["reference  (built in)", "    - rng: not on our GPUs", "torch  (built in)"])


def test_a_wrong_section_is_a_usage_error(backends, pytester):
    pytester.makepyprojecttoml("[tool.pytest-regional]\nbackend = 1")
    result = backends()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown key 'backend'*"])


def test_one_that_the_ini_file_names(backends, pytester):
    pytester.makeini("[pytest]\nregional_backend = nowhere:backend\n")
    backends().stdout.fnmatch_lines(["nowhere:backend  (named by *)"])


def test_the_console_script_finds_modules_of_the_working_directory(pytester):
    """As ``python -m`` does."""
    scripts = pytester.mkdir("scripts")
    source = "import sys; from pytest_regional.cli import main; sys.exit(main())"
    scripts.joinpath("pytest-regional").write_text(source)
    pytester.makepyfile(mine="from pytest_regional import BackendSpec\nspec = BackendSpec('mine', lambda: 'eager')")
    result = pytester.run(sys.executable, scripts / "pytest-regional", "backends", "mine:spec")
    result.stdout.fnmatch_lines(["mine:spec  (named by *)", "    claims *"])


def test_the_console_script_is_the_same_command():
    from importlib.metadata import EntryPoint

    from pytest_regional.cli import main

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
    assert list(scripts) == ["pytest-regional"]
    assert EntryPoint("pytest-regional", scripts["pytest-regional"], "console_scripts").load() is main


def test_a_reader_that_has_seen_enough_is_no_error():
    """As in ``pytest-regional backends | head -1``."""
    command = [sys.executable, "-m", "pytest_regional", "backends"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 1)
