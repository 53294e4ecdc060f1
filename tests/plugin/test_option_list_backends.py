"""``--regional-list-backends``: what there is to test, without a run."""

from __future__ import annotations

import pytest


def test_built_in_backends_and_one_that_is_named(downstream, pytester):
    pytester.makepyfile(
        mine="""
        from pytest_regional import BackendSpec, declared, unsupported

        specification = BackendSpec("mine", lambda: "aot_eager", declared(rng=unsupported("no seeds are kept"))())
        """
    )
    result = downstream("assert False, 'imported'", "--regional-list-backends", "--regional-backend=mine:specification")
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


def test_one_that_cannot_be_loaded_is_told_beside_the_others(downstream):
    result = downstream("", "--regional-list-backends", "--regional-backend=nowhere:backend")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["reference  (built in)", "nowhere:backend*", "    cannot be used: *No module named 'nowhere'*"]
    )


def test_what_the_repository_disclaims_is_among_it(downstream, pytester):
    pytester.makepyprojecttoml(
        """
        [tool.pytest-regional.backends.reference.disclaims]
        rng = "not on our GPUs"
        """
    )
    result = downstream("", "--regional-list-backends")
    result.stdout.fnmatch_lines(["reference  (built in)", "    - rng: not on our GPUs", "torch  (built in)"])


def test_a_wrong_section_is_a_usage_error(downstream, pytester):
    pytester.makepyprojecttoml("[tool.pytest-regional]\nbackend = 1")
    result = downstream("", "--regional-list-backends")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown key 'backend'*"])


def test_one_that_the_ini_file_names(downstream, pytester):
    pytester.makeini("[pytest]\nregional_backend = nowhere:backend\n")
    result = downstream("", "--regional-list-backends")
    result.stdout.fnmatch_lines(["nowhere:backend  (named by *)"])
