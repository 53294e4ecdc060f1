"""What a test started ends with it, or with who asked for it; what others started does not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_regional._base import processes
from pytest_regional._base.limits import RegionalTimeoutError, time_limit
from tests.plugin.conftest import _torch_stays_imported, downstream, repository  # noqa: F401

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are seen on Linux alone")


def ended(number: int, within: float = 20.0) -> bool:
    """Say whether a process ends in so many seconds."""
    until = time.monotonic() + within
    while processes.runs(number) and time.monotonic() < until:
        time.sleep(0.02)
    return not processes.runs(number)


@pytest.fixture
def server():
    with subprocess.Popen(["sleep", "64"]) as running:
        yield running
        running.kill()


class TestATimeout:
    def test_spares_what_was_started_in_the_same_clock_tick(self, server):
        for _ in range(20):
            with subprocess.Popen(["sleep", "65"]) as beside:
                # No pause: a server is started, and at once the limit of the next phase begins.
                with pytest.raises(RegionalTimeoutError, match="were ended: 1"), time_limit(0.05):
                    subprocess.run(["sleep", "66"], check=False)
                assert beside.poll() is None
                beside.kill()

    def test_spares_what_runs_where_the_kernel_lists_no_children(self, server, monkeypatch):
        monkeypatch.setattr(Path, "exists", lambda path: not str(path).endswith("/children"))
        with pytest.raises(RegionalTimeoutError, match="were ended: 1"), time_limit(0.2):
            subprocess.run(["sleep", "66"], check=False)
        assert server.poll() is None

    def test_takes_a_number_that_is_used_again_for_another_process(self, server):
        before = {(server.pid, 1)}
        assert server.pid in processes.started_after(before)


SERVERS = """
import subprocess, time

@pytest.fixture(scope="session")
def server():
    with subprocess.Popen(["sleep", "67"]) as running:
        yield running
        running.kill()

@pytest.fixture
def stuck(server):
    subprocess.run(["sleep", "68"])

@pytest.mark.regional_compile(expects_regions=False)
def test_hangs_in_the_setup_that_began_the_server(server, stuck): pass

@pytest.mark.regional_compile(expects_regions=False)
def test_hangs_in_its_call(server):
    subprocess.run(["sleep", "68"])

@pytest.mark.regional_compile(expects_regions=False)
def test_server(server):
    assert server.poll() is None
"""


def test_the_server_of_a_session_outlives_tests_that_hang(downstream):  # noqa: F811
    result = downstream(SERVERS, "--regional-backend=aot_eager", "--regional-timeout=1")
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*seconds of setup; processes that it had started were ended: 1"])
    result.stdout.fnmatch_lines(["*=1 seconds; processes that it had started were ended: 1"])


# in_new_process

HARNESS = """
import os, subprocess, sys, time
from pathlib import Path

def waits(folder):
    child = subprocess.Popen(["sleep", "69"])
    Path(folder, "new").write_text(f"{os.getpid()} {child.pid}")
    os.replace(Path(folder, "new"), Path(folder, "started"))
    time.sleep(600)

def holds_the_lock(folder):
    import itertools
    Path(folder, "new").write_text(f"{os.getpid()}")
    os.replace(Path(folder, "new"), Path(folder, "started"))
    all(itertools.repeat(True))

if __name__ == "__main__":
    import threading
    from pytest_regional.harness.process import ForkServers, NewProcesses, call_in_new_process, job_for
    sys.path.insert(0, os.path.dirname(__file__))
    import asks
    how, function, folder, servers = sys.argv[1:]
    harness = {"spec": "aot_eager", "device": "cpu", "folder": Path(folder, "cache")}

    def leave():
        while not Path(folder, "started").exists():
            time.sleep(0.05)
        os._exit(0)

    if how == "leaves":
        threading.Thread(target=leave, daemon=True).start()
    starts = NewProcesses(ForkServers(1, "cpu"), "cpu") if servers == "forkserver" else None
    call_in_new_process(job_for(getattr(asks, function), (folder,), harness), None, starts)
"""


@pytest.mark.parametrize(
    ("how", "function", "servers"), [("is killed", "waits", "forkserver"), ("leaves", "holds_the_lock", "spawn")]
)
def test_a_new_process_ends_with_who_asked_for_it(tmp_path, how, function, servers):
    (tmp_path / "asks.py").write_text(HARNESS)
    started = tmp_path / "started"
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "asks.py"), how, function, str(tmp_path), servers],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as asker:
        until = time.monotonic() + 120
        while not started.exists():
            assert time.monotonic() < until
            assert asker.poll() is None or started.exists()
            time.sleep(0.05)
        if how == "is killed":
            asker.send_signal(signal.SIGKILL)
    numbers = [int(number) for number in started.read_text().split()]
    left = [number for number in numbers if not ended(number)]
    for number in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    assert left == []


def test_the_guard_of_a_process_ends_with_it_and_is_no_child():
    code = """
import os, sys
from pytest_regional._base import processes
from pytest_regional.harness._child import ends_with

with ends_with(os.getppid()):
    guard, = processes.children(os.getpid())
    while processes._GUARD not in open(f"/proc/{guard}/comm").read():
        pass
    assert processes.with_all_below(os.getpid()) == [os.getpid()]
print(list(processes.children(os.getpid())), processes.runs(guard))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[] False\n", "")


def test_a_process_whose_asker_is_gone_already_ends():
    gone = subprocess.Popen(["true"])
    gone.wait()
    code = f"""
import time
from pytest_regional.harness._child import ends_with

with ends_with({gone.pid}):
    time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=50, check=False)
    assert done.returncode == -signal.SIGKILL
