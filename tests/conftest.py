"""Hypothesis profiles for the property tests: ``ci`` by default, ``--hypothesis-profile=full`` for thousands.

And a Redis server for the tests that need one.
"""

import gc
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pytest_regional._base.processes import cpu_seconds_of
from pytest_regional._torch.dynamo import guards_untimed
from pytest_regional._torch.process_state import structured_trace_off
from pytest_regional.harness.kernel_store import VARIABLE, chosen_folder, kernels_kept
from tests import warm_process as processes
from tests.redis_server import RunningRedis, free_port

settings.register_profile(
    "ci", max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.register_profile("full", settings.get_profile("ci"), max_examples=10_000, derandomize=False)
settings.load_profile("ci")

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure():
    """Set what is read once, when torch is imported; ``CI`` is: keys of caches differ where one process alone has it.

    Inductor compiles in the process that asks: a pool costs each process seconds. Threads that wait leave the cores to
    the other processes, of which there are many here.
    """
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Where one of these is set, nested runs print their summaries in another way too, or take them for those of a job.
    for name in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS", "GITHUB_WORKSPACE", "GITHUB_STEP_SUMMARY", "GITLAB_CI"):
        os.environ.pop(name, None)
    # Nested runs have homes of their own (pytester's), and would compile each kernel anew.
    store = chosen_folder()
    if store is not None:
        os.environ[VARIABLE] = str(store)


def pytest_itemcollected(item):
    """Check that a slow test says why, and names a faster one, of its file or as FILE::NAME, for the same faults."""
    for mark in item.iter_markers("slow"):
        file, _, name = mark.kwargs["fast"].rpartition("::")
        text = (ROOT / file if file else item.path).read_text()
        assert mark.args[0], f"{item.nodeid}: slow needs a reason"
        before, found, _ = text.partition(f"def {name.partition('[')[0]}(")
        assert found, f"{item.nodeid}: no {mark.kwargs['fast']}"
        decorators = before.rpartition("\n\n")[2]
        assert "@pytest.mark.slow(" not in decorators, f"{item.nodeid}: {mark.kwargs['fast']} is slow itself"


def pytest_sessionstart():
    _USED[0] = cpu_seconds_of(os.getpid())
    processes.ENVIRONMENT = dict(os.environ)  # all plugins have set theirs, and no test


def pytest_collection_finish():
    """Have the collector of cycles not look through all modules and tests again and again: they stay.

    Nor each few hundred objects through what a compile makes, which lives until the compile ends.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    """Keep PyTorch from printing each graph of each compile into pytest's capture of logs, where no test looks."""
    with structured_trace_off():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    """Note the processor time of a test at its end, when its patches are gone: of this process and all below it."""
    report = yield
    if call.when == "teardown":
        used = cpu_seconds_of(os.getpid())
        report.cpu_seconds = used - _USED[0]
        _USED[0] = used
    return report


_USED = [0.0]  # by this process, its imports included, when the last test ended
_SPENT: Counter[str] = Counter()


def pytest_runtest_logreport(report):
    _SPENT[report.nodeid] += getattr(report, "cpu_seconds", 0.0)


def pytest_terminal_summary(terminalreporter):
    """Print what costs most: the ten most expensive tests, and each folder, in seconds of processor time."""
    if sum(_SPENT.values()) < 60:
        return
    folders: Counter[str] = Counter()
    for test, seconds in _SPENT.items():
        folders["/".join(test.partition("::")[0].split("/")[:2])] += seconds
    terminalreporter.section("processor time, in seconds")
    for name, seconds in (*folders.most_common(), *_SPENT.most_common(10)):
        terminalreporter.write_line(f"{seconds:8.1f}  {name}")


def pytest_unconfigure():
    gc.unfreeze()  # libraries complain of what is not collected at the end


@pytest.fixture(scope="session")
def redis_port(tmp_path_factory):
    """The port of a real Redis server that lives as long as the tests."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed; `make services` installs it")
    pytest.importorskip("redis", reason="the package redis is not installed; pip install 'pytest-regional[redis]'")
    port = free_port()
    folder = tmp_path_factory.mktemp("redis")
    with RunningRedis(port, folder):
        yield port


@pytest.fixture
def warm_process(monkeypatch):
    """Fork the process of ``in_new_process``, which saves it the imports of an interpreter.

    For tests of something else: what they look at is the same in both.
    """

    def run_interpreter(module, arguments, environment, timeout, python=sys.executable):
        assert python == sys.executable
        return processes.run_module(module, arguments, Path.cwd(), environment, timeout, together=True)

    monkeypatch.setattr("pytest_regional.harness.process.run_interpreter", run_interpreter)
    monkeypatch.setattr("pytest_regional.bug_report.running.run_interpreter", run_interpreter)


@pytest.fixture(scope="session", autouse=True)
def _kernels_are_kept():
    """Keep what the C++ compiler makes for tests that use no harness too: most compile what another has compiled."""
    with kernels_kept():
        yield


@pytest.fixture(scope="session", autouse=True)
def _guards_are_not_timed():
    """Nor for those that compile without the harness, which would wait for it and for other processes' caches."""
    with guards_untimed():
        yield
