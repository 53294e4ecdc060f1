"""The line that runs a failed test again: it does, alone, and the test fails in the same way."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_regional.plugin.written import RerunCommands
from tests.warm_process import run_module

from .conftest import in_a_process
from .test_option_fuzz import BREAKS

SOURCE = """
    @pytest.mark.regional_compile(expects_regions=False)
    @pytest.mark.parametrize("n", [2, 3])
    def test_draws(regional, n):
        assert n == 2, f"drew {regional.randn(4).tolist()}"

    @pytest.mark.regional_compile(expects_regions=False)
    def test_right(regional):
        pass
"""

RUN = ("--regional-backend=aot_eager", "--regional-device=cpu", "-p", "no:randomly")


def rerun_lines(result):
    return [found[1] for line in result.outlines if (found := re.match(r"rerun: (.*)", line))]


def run_again(pytester, line):
    program, *arguments = shlex.split(line.replace("python -m pytest", "pytest"))
    assert program == "pytest"
    return in_a_process(pytester, *arguments)


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "n2"])
def test_the_line_runs_the_test_alone_and_draws_the_same(repository, pytester, workers):
    repository(SOURCE)
    first = in_a_process(pytester, *RUN, "--regional-seed=7", *workers)
    (line,) = rerun_lines(first)
    assert line.endswith("test_it.py::test_draws[3]' --regional-backend=aot_eager --regional-device=cpu "
                         "--regional-seed=7 -p no:randomly -n0")  # fmt: skip
    again = run_again(pytester, line)
    again.assert_outcomes(failed=1)
    said = [next(one for one in result.outlines if "drew" in one and one.startswith("E")) for result in (first, again)]
    assert said[0] == said[1]


def test_it_is_in_the_report_the_page_the_junit_file_and_the_summary(downstream, pytester):
    result = downstream(SOURCE, *RUN, "--regional-report=a.json,a.html,a.md", "--junit-xml=a.xml")
    (line,) = rerun_lines(result)
    bad = [test for test in json.loads((pytester.path / "a.json").read_text())["tests"] if "rerun" in test]
    assert [(test["test"], test["rerun"]) for test in bad] == [("test_it.py::test_draws[3]", line)]
    assert line in (pytester.path / "a.md").read_text()
    assert line.replace("'", "&#39;") in (pytester.path / "a.html").read_text()
    assert f"rerun: {line}" in (pytester.path / "a.xml").read_text()


def test_options_that_decide_what_a_test_does_are_repeated_and_no_others(downstream, pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "-W ignore::UserWarning")
    pytester.makeini("[pytest]\naddopts = --regional-timeout=99\n")
    options = ("-o", "regional_memory=9G", "-vv", "-k", "draws", "--regional-audit", "--regional-blame=off")
    more = ("--maxfail=5", "--regional-report=x.json", "-rf", "--tb=short", "-n0", "--regional-findings=found dir")
    (line,) = rerun_lines(downstream(SOURCE, *RUN, *options, *more))
    assert shlex.split(line.partition("pytest ")[2]) == shlex.split(
        "test_it.py::test_draws[3] --regional-backend=aot_eager --regional-device=cpu --regional-seed=20251006 "
        "'--regional-findings=found dir' --regional-audit --regional-blame=off -p no:randomly -p no:cacheprovider "
        "-o regional_memory=9G -W ignore::UserWarning -n0"
    )
    assert "timeout" not in line


FINDINGS = [{"script": f"/here/regional-findings/sine-{number}.py"} for number in range(4)]
WITH_FINDINGS = {"fuzz": {"findings": FINDINGS[:2]}, "shard": 0, "backend": "faulty"}

#: What is known of a test; options; what the command ends with.
COMMANDS = {
    "one backend": ({}, {}, "test_it.py::test_it {0}--regional-seed=5 -n0"),
    "all backends and devices": (
        {"test": "test_it.py::test_it[inductor-cpu]"},
        {"backends": ("aot_eager", "inductor"), "devices": ("cpu", "cuda-emulated")},
        "'test_it.py::test_it[inductor-cpu]' --regional-backend=aot_eager,inductor "
        "--regional-device=cpu,cuda-emulated --regional-seed=5 -n0",
    ),
    "what auto means": ({"device": "cuda"}, {"devices": ("auto",)}, "--regional-device=cuda --regional-seed=5 -n0"),
    "no pytest-xdist": ({}, {"xdist": False}, "test_it.py::test_it {0}--regional-seed=5"),
    "in workers": ({}, {"workers": 2}, "test_it.py::test_it {0}--regional-seed=5 -n0"),
    "the first part of a fuzz test": ({"shard": 0}, {"workers": 2}, "{0}--regional-seed=7 -n0"),
    "another part of a fuzz test": ({"shard": 1}, {"workers": 2}, "{0}--regional-seed=7 -n2"),
    "findings": (
        WITH_FINDINGS,
        {"backends": ("here:faulty", "there:other")},
        "pytest-regional replay regional-findings/sine-0.json regional-findings/sine-1.json --backend=here:faulty",
    ),
    "findings of an installed backend": (
        WITH_FINDINGS,
        {"backends": ("faulty",)},
        "pytest-regional replay regional-findings/sine-0.json regional-findings/sine-1.json",
    ),
    "many findings": ({"fuzz": {"findings": FINDINGS}}, {}, "pytest-regional replay regional-findings"),
}


@pytest.mark.parametrize(("known", "run", "command"), COMMANDS.values(), ids=COMMANDS)
def test_commands(known, run, command):
    run = {"backends": ("aot_eager",), "devices": ("cpu",), "xdist": True, "workers": 0, **run}
    config = SimpleNamespace(
        rootpath=Path("/here"),
        inipath=Path("/here/pytest.ini"),
        invocation_params=SimpleNamespace(args=(), dir=Path("/here")),
        option=SimpleNamespace(pyargs=False, tx=["popen"] * run["workers"]),
        pluginmanager=SimpleNamespace(hasplugin=lambda name: run["xdist"]),
    )
    session = SimpleNamespace(
        config=config,
        settings=SimpleNamespace(backends=run["backends"], devices=run["devices"], seed=5),
        fuzz_seed=7,
        spec=lambda name: SimpleNamespace(name=name.rpartition(":")[2]),
    )
    fact = {"test": "test_it.py::test_it", "backend": "aot_eager", "device": "cpu", "fuzz": None, **known}
    made = RerunCommands(session).of(fact)
    assert made.endswith(command.format("--regional-backend=aot_eager --regional-device=cpu "))


def test_passwords_are_not_repeated(downstream):
    (line,) = rerun_lines(downstream(SOURCE, *RUN, "-o", "junit_suite_name=redis://me:pass@host/0?token=abc"))
    assert "redis://***@host/0?token=***" in line
    assert "pass" not in line
    assert "abc" not in line


@pytest.mark.parametrize(
    ("body", "backend"),
    [
        ("pass", "inductor"),
        ("pytest.fail('no', pytrace=False)", "aot_eager"),
        ("raise KeyError('x') from ValueError('y')", "aot_eager"),
    ],
    ids=["vacuous", "without a traceback", "chained"],
)
def test_every_kind_of_failure_has_the_line(downstream, body, backend):
    test = f"@pytest.mark.regional_compile\ndef test_it(regional):\n    {body}\n"
    (line,) = rerun_lines(downstream(test, f"--regional-backend={backend}", "--regional-device=cpu"))
    assert "test_it.py::test_it " in line


def test_an_error_in_setup_and_a_pass_that_is_wrong_have_it_and_an_unmarked_test_does_not(downstream):
    result = downstream(
        """
        @pytest.fixture
        def broken():
            raise RuntimeError("setup")

        @pytest.mark.regional_compile(expects_regions=False)
        def test_error(broken):
            pass

        @pytest.mark.regional_compile(expects_regions=False)
        @pytest.mark.regional_known_failure("aot_eager", "of old")
        def test_known():
            pass

        def test_of_somebody_else():
            assert False
        """,
        *RUN,
    )
    assert [re.search(r"::(\w+)", line)[1] for line in rerun_lines(result)] == ["test_error", "test_known"]


@pytest.mark.slow("runs two backends on two devices, twice", fast="test_commands")
def test_ids_that_name_backend_and_device_are_kept_with_all_that_were_asked_for(repository, pytester):
    repository(SOURCE)
    both = ("--regional-backend=aot_eager,inductor", "--regional-device=cpu,cuda-emulated", "-p", "no:randomly")
    lines = rerun_lines(in_a_process(pytester, *both))
    assert len(lines) == 4
    (line,) = (one for one in lines if "[inductor-cpu-3]" in one)
    run_again(pytester, line).assert_outcomes(failed=1)


def test_from_another_directory_than_the_root(repository, pytester, monkeypatch):
    repository(SOURCE)
    pytester.makeini("[pytest]\n")
    pytester.mkdir("sub")
    monkeypatch.chdir(pytester.path / "sub")
    (line,) = rerun_lines(pytester.runpytest_inprocess(*RUN, "-p", "no:cacheprovider", ".."))
    assert "'../test_it.py::test_draws[3]'" in line


def test_without_a_file_of_settings_the_root_is_named_if_it_is_another(repository, pytester, monkeypatch):
    repository(SOURCE)
    pytester.mkdir("sub")
    monkeypatch.chdir(pytester.path / "sub")
    (line,) = rerun_lines(pytester.runpytest_inprocess(*RUN, "-p", "no:cacheprovider", ".."))
    assert "--rootdir=.." in line


@pytest.mark.slow("starts runs in processes, which import torch", fast="test_commands")
def test_without_xdist_there_is_no_n0(repository, pytester):
    repository(SOURCE)
    (line,) = rerun_lines(in_a_process(pytester, *RUN, "-p", "no:xdist"))
    assert "-n0" not in line
    run_again(pytester, line).assert_outcomes(failed=1)


@pytest.mark.slow("fuzzes, and replays a finding in a process", fast="test_commands")
def test_a_finding_is_checked_again_by_replay(repository, pytester):
    """It fails no second run of the campaign: it is known then."""
    repository(BREAKS)
    run = ("--regional-backend=test_it:faulty", "--regional-device=cpu", "--regional-blame=off", "--regional-fuzz=4")
    (line,) = rerun_lines(in_a_process(pytester, *run))
    (found,) = (pytester.path / "regional-findings").glob("*.json")
    assert line == f"pytest-regional replay regional-findings/{found.name} --backend=test_it:faulty"
    arguments = shlex.split(line)[1:]
    done = run_module(
        "pytest_regional", arguments, pytester.path, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAILED      {found.stem}" in done.stdout.replace("still fails", "FAILED     ")


@pytest.mark.slow("starts runs with two workers, which import torch", fast="test_commands")
def test_a_part_of_a_fuzz_test_is_run_with_the_others(repository, pytester):
    repository(
        """
        @pytest.mark.regional_compile(expects_regions=False)
        def test_fuzz(regional_fuzz):
            assert regional_fuzz.shard == 0, "part"
            regional_fuzz.run("native", oracles=("compiles",))
        """
    )
    (line,) = rerun_lines(in_a_process(pytester, *RUN, "-n2", "--regional-fuzz=2"))
    assert "test_it.py::test_fuzz[shard1]" in line
    assert "--regional-fuzz=2" in line
    assert line.endswith(" -n2")
    run_again(pytester, line).assert_outcomes(failed=1)
