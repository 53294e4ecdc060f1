"""A failure of the plugin's own reporting: the run goes on, shows it at its end, and fails."""

from __future__ import annotations

import contextlib
import inspect

import pytest

from pytest_regional import plugin
from pytest_regional.plugin.workers import ReportingErrors

#: Hooks that are not guarded, and why what they raise loses no run.
MAY_RAISE = {
    "pytest_addoption": "before the run",
    "pytest_load_initial_conftests": "before the run",
    "pytest_configure": "before the run",
    "pytest_collection_modifyitems": "collection.prepare keeps what the marks of a test raise as that test's problem",
    "pytest_generate_tests": "pytest reports it as an error of the file",
    "pytest_runtest_setup": "pytest reports it as an error of the test",
    "pytest_runtest_call": "pytest reports it as a failure of the test",
    "pytest_runtest_teardown": "pytest reports it as an error of the test",
    "pytest_fixture_setup": "pytest reports it as an error of the test",
    "pytest_xdist_make_scheduler": "before the run",
    "pytest_pycollect_makemodule": "pytest reports it as an error of the file",
    "RunHooks.pytest_sessionfinish": "each step of _finish is guarded",
    "EndingHooks.pytest_runtestloop": "it assigns one flag",
    "GoldenHooks.pytest_sessionfinish": "it looks at a list",
    "GoldenHooks.pytest_terminal_summary": "it prints a list",
}

#: Functions that hooks call to report, those of one run together, and what it says that it was doing. What fails
#: hides what comes after it in the same step, so there are several runs.
FAILING = (
    {
        "pytest_regional.report.details.details_of": "collecting the facts of test_it.py::test_passes",
        "pytest_regional.report.junit.add_to_run": "adding totals to the JUnit file",
        "pytest_regional.report.terminal.write": "writing the table",
        "pytest_regional.report.terminal.write_fuzzing": "writing the table of fuzzing",
        "pytest_regional.report.this_run.Heartbeat.phase": "writing that test_it.py::test_passes is in its setup",
        "pytest_regional.report.this_run.Heartbeat.end": "writing that test_it.py::test_passes is over",
        "pytest_regional.plugin.written.write_report": "writing */report.json",
        "pytest_regional.plugin.written.add_text": "adding how to run test_it.py::test_fails again",
        "pytest_regional.plugin.written.Evidence.write": "writing */kept",
        "pytest_regional.report.step_summary.append_summary": "writing the summary of the job",
        "pytest_regional.report.ci.annotations_of": "writing annotations",
        "pytest_regional.plugin.hooks.KernelFiles.prune": "bringing the store of compiled kernels back to its size",
        "pytest_regional.plugin.session.installed_version": "writing pytest's header",
    },
    {
        "pytest_regional.report.this_run.read": "reading the facts of test_it.py::test_passes",
        "pytest_regional.report.junit.properties_of_test": "collecting the facts of test_it.py::test_passes",
        "pytest_regional.plugin.written.report_of": "writing the report",
    },
    {"pytest_regional.report.facts.of": "collecting the facts of test_it.py::test_passes"},
    {"pytest_regional.report.facts.plain": "collecting the facts of test_it.py::test_passes"},
    {"pytest_regional.plugin.evidence.Evidence.keep": "collecting the facts of test_it.py::test_passes"},
)
#: The same with workers: what fails in them, and in the process that starts them.
CROSSING = (
    {
        "pytest_regional.report.details.details_of": "collecting the facts of test_it.py::test_*",
        "pytest_regional.report.junit.add_to_run": "adding totals to the JUnit file",
        "pytest_regional.report.this_run.read": "reading the facts of test_it.py::test_*",
    },
    {
        "pytest_regional.plugin.workers.allow_one_more": "counting the worker that died in test_it.py::test_dies",
        "pytest_regional.plugin.workers.visible_gpus": "giving worker gw0 its own GPU",
    },
)

SOURCE = """
    import os, time

    @pytest.mark.regional_compile(expects_regions=False)
    def test_passes(regional):
        time.sleep(0.2)

    @pytest.mark.regional_compile(expects_regions=False)
    def test_fails(regional):
        assert 1 == 2

    def test_of_somebody_else():
        pass
"""

DIES = """
    @pytest.mark.regional_compile(expects_regions=False)
    def test_dies(regional):
        os._exit(3)
"""

#: In the nested run, on its workers too.
CONFTEST = """
import importlib, sys
import pytest

NAMES = {names!r}

def fails(*arguments, **keywords):
    raise RuntimeError("planted in reporting")

def holder(parts):
    for end in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:-1]:
            found = getattr(found, part)
        return found

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.add_cleanup(pytest.MonkeyPatch().undo)
    patch = pytest.MonkeyPatch()
    for name in NAMES:
        parts = name.split(".")
        where = holder(parts)
        assert hasattr(where, parts[-1]), name
        patch.setattr(where, parts[-1], fails)
    config.add_cleanup(patch.undo)
"""


def run_with(downstream, pytester, failing, *options):
    pytester.makeconftest(CONFTEST.format(names=list(failing)))
    deaths = any("allow_one_more" in name for name in failing)
    result = downstream(
        SOURCE + (DIES if deaths else ""),
        "--regional-backend=aot_eager",
        "--regional-device=cpu",
        "--regional-report=report.json,kept/,github",
        "--junit-xml=junit.xml",
        "-v",
        *options,
        subprocess="-n2" in options,
    )
    result.assert_outcomes(passed=2, failed=1 + deaths)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*= regional reporting errors =*", "*RuntimeError: planted in reporting"])
    for doing in failing.values():
        result.stdout.fnmatch_lines([f"while {doing}*:"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    result.stdout.no_fnmatch_line("*no active workers*")


@pytest.mark.parametrize("failing", FAILING)
def test_the_run_goes_on_shows_it_and_fails(downstream, pytester, failing):
    run_with(downstream, pytester, failing)


def test_a_run_without_failing_tests_fails(downstream, pytester):
    pytester.makeconftest(CONFTEST.format(names=["pytest_regional.report.terminal.write"]))
    test = "def test_it(): pass"
    assert downstream(test, "--regional-backend=aot_eager").ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("failing", CROSSING)
def test_with_workers_too(downstream, pytester, failing):
    run_with(downstream, pytester, failing, "-n2")


def test_each_hook_is_guarded_or_says_why_not(pytester):
    """A hook that is added reports through the guard, or stands above with the reason."""
    config = pytester.parseconfigure("--regional-backend=aot_eager", "-p", "no:randomly")
    registered = config.pluginmanager.list_name_plugin()
    holders = [type(hooks) for name, hooks in registered if name.startswith("regional-")] + [plugin]
    assert len(holders) >= 6
    hooks = {
        (holder.__name__, name): hook
        for holder in holders
        for name, hook in vars(holder).items()
        if name.startswith("pytest_")
    }
    guarded = {
        name
        for name, hook in hooks.items()
        if any(
            word in inspect.getsource(hook)
            for word in (
                "_errors.kept(",
                "_errors.around(",
                ".header()",
                "_is_a_fork()",
            )
        )
    }
    raising = {*MAY_RAISE, "pytest_regional.plugin.pytest_runtest_makereport"}
    assert {name for name in set(hooks) - guarded if not raising & {name[1], ".".join(name)}} == set()
    assert len(guarded) >= 20


def test_exceptions_that_end_a_test_or_the_run_propagate():
    errors = ReportingErrors()
    with pytest.raises(KeyboardInterrupt), errors.kept("reporting"):
        raise KeyboardInterrupt
    assert not errors


def test_an_error_of_the_block_is_not_the_contexts():
    @contextlib.contextmanager
    def fails_at_its_end():
        yield
        raise OSError("of the context")

    errors = ReportingErrors()
    with pytest.raises(LookupError, match="of the test"), errors.around("reporting", fails_at_its_end):
        raise LookupError("of the test")
    assert [text.splitlines()[-1] for _, text in errors.taken()] == ["OSError: of the context"]
