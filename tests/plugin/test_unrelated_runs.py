"""A run of unrelated tests with the plugin installed costs next to nothing; and the plugin beside others."""

from __future__ import annotations

import pytest

UNRELATED = """
import sys

def test_it():
    pass
"""

WATCH = """
import sys

def pytest_unconfigure():
    watched = ("torch", "hypothesis", "pytest_regional.harness", "pytest_regional.backends", "numpy")
    print("imported:", [name for name in watched if name in sys.modules])
    print("ours:", *sorted(name for name in sys.modules if name.startswith("pytest_regional")))
    assert "pytest_regional.plugin" in sys.modules
"""


def test_neither_torch_nor_hypothesis_is_imported(pytester):
    pytester.makepyfile(test_it=UNRELATED)
    pytester.makeconftest(WATCH)
    # Hypothesis's own plugin imports Hypothesis at the end of every run; that is not ours.
    result = pytester.runpytest_subprocess("-s", "-p", "no:hypothesispytest", "-p", "no:randomly", "-p", "no:torch")
    result.assert_outcomes(passed=1)
    base = " ".join(f"*._base{name}" for name in ("", ".stash", ".text"))
    plugin = " ".join(f"*.plugin{name}" for name in ("", ".fixtures", ".options"))
    ours = f"pytest_regional {base} {plugin}"
    result.stdout.fnmatch_lines(["*imported: []*", f"ours: {ours.replace('*', 'pytest_regional')}"])


MARKED = """
import pytest, torch

@pytest.mark.regional_compile
def test_one(regional):
    regional.assert_parity(torch.sin, regional.randn(3))
"""


def test_what_collects_and_reports_imports_no_torch(pytester):
    result = pytester.runpython_c("import sys, pytest_regional.plugin.hooks; assert 'torch' not in sys.modules")
    assert result.ret == 0


WORKERS = ("--tx=popen", "--dist=load")  # which pytest-xdist makes of -n1


@pytest.mark.parametrize(
    ("options", "runs_tests"),
    [(WORKERS, False), ((), True), (WORKERS[1:], True), ((*WORKERS, "--collect-only"), True)],
)
def test_a_process_that_starts_workers_runs_no_tests(pytester, options, runs_tests):
    """What runs them imports torch."""
    config = pytester.parseconfigure("--regional-backend=aot_eager", "-p", "no:randomly", *options)
    assert config.pluginmanager.hasplugin("regional-session")
    assert config.pluginmanager.hasplugin("regional-tests") is runs_tests


@pytest.mark.slow("starts two workers", fast="test_a_process_that_starts_workers_runs_no_tests")
@pytest.mark.parametrize(("option", "imports"), [("-n1", False), ("-n0", True), ("--dist=load", True)])
def test_a_process_that_starts_workers_imports_no_torch(pytester, option, imports):
    pytester.makepyfile(test_it=MARKED, watch=WATCH)
    options = ("--regional-backend=aot_eager", "--regional-report=report.json,report.html", "-p", "watch", option)
    others = ("-p", "no:hypothesispytest", "-p", "no:randomly", "-p", "no:torch")
    result = pytester.runpytest_subprocess(*options, *others)
    result.assert_outcomes(passed=1)
    (watched,) = (line for line in result.outlines if line.startswith("imported:"))
    assert ("'torch'" in watched) is imports


COUNTED = """
import pluggy, pytest

original = pluggy.PluginManager.load_setuptools_entrypoints
searches = []

def search(manager, group, name=None):
    searches.append(name)
    return original(manager, group, name)

pluggy.PluginManager.load_setuptools_entrypoints = search
assert pytest.main(["-p", "no:hypothesispytest", "-p", "no:randomly", "-p", "no:torch"]) == 0
print("searched for:", searches)
"""


def test_pytest_looks_through_the_installed_packages_once(pytester):
    """For every name in ``pytest_plugins`` it would do so again."""
    pytester.makepyfile(test_it=UNRELATED)
    result = pytester.runpython_c(COUNTED)
    result.stdout.fnmatch_lines(["searched for: [[]None[]]"])


NO_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
"""


def without_torch(pytester, *arguments):
    pytester.makepyfile(notorch=NO_TORCH)
    pytester.syspathinsert()
    return pytester.runpytest_subprocess(
        "-p", "notorch", "-p", "no:randomly", "-p", "no:hypothesispytest", "-p", "no:torch", *arguments
    )


def test_without_torch_unrelated_tests_run(pytester):
    pytester.makepyfile(test_it=UNRELATED)
    without_torch(pytester).assert_outcomes(passed=1)


def test_without_torch_marked_tests_are_skipped_while_the_option_is_off(pytester):
    pytester.makepyfile(test_it="import pytest\n@pytest.mark.regional_compile\ndef test_it(regional): pass\n")
    without_torch(pytester).assert_outcomes(skipped=1)


@pytest.mark.parametrize("options", [(), ("-n1",)])
def test_without_torch_the_option_says_what_is_missing(pytester, options):
    pytester.makepyfile(test_it=UNRELATED)
    result = without_torch(pytester, "--regional-backend", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--regional-backend needs torch, which is not installed*"])


def test_with_pytest_torch_and_in_random_order(downstream):
    pytest.importorskip("pytest_torch")
    result = downstream(
        """
        @pytest.mark.regional_compile
        @pytest.mark.parametrize("n", [2, 3, 4])
        def test_parity(regional, n):
            regional.assert_parity(block, *pair(regional, n))
        """,
        "--regional-backend=torch",
        "-p",
        "randomly",
    )
    result.assert_outcomes(passed=3)
