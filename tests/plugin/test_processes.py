"""What a hanging test started ends with it; code that cannot be interrupted ends its process."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_regional._base import processes
from pytest_regional._base.limits import RegionalTimeoutError, time_limit
from pytest_regional.fuzz.budget import cpu_limit

SLEEPS = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '61'])"]


def sleepers():
    """Return the numbers of running ``sleep 61`` below this process."""
    found = subprocess.run(["pgrep", "-f", "^sleep 61$"], capture_output=True, text=True, check=False)
    return found.stdout.split()


@pytest.mark.skipif(not Path("/proc/uptime").exists(), reason="processes are seen on Linux alone")
def test_a_started_process_ends_with_its_children():
    before = subprocess.Popen(["sleep", "62"])
    time.sleep(0.05)
    with pytest.raises(RegionalTimeoutError, match="processes that it had started were ended: 2"), time_limit(1.5):
        subprocess.run(SLEEPS, check=False)
    assert sleepers() == []
    assert before.poll() is None
    before.kill()
    before.wait()


BURNS = "import time\nwhile time.process_time() < {}: pass"


def test_a_limit_of_processor_time_counts_processes_and_no_clock():
    with cpu_limit(3.0):
        for _ in range(7):  # 3.5 s by the clock, in which it computes a little
            time.sleep(0.45)
            until = time.process_time() + 0.05
            while time.process_time() < until:
                pass
    with pytest.raises(RegionalTimeoutError, match=r"after 1 seconds of processor time; .* were ended: 1"):
        with cpu_limit(1.0):
            subprocess.run([sys.executable, "-c", BURNS.format(60)], check=False)
    with pytest.raises(RegionalTimeoutError, match="waiting for 1 seconds"), cpu_limit(1.0):
        time.sleep(60)


def test_the_pool_of_inductor_is_kept(tmp_path):
    pool = tmp_path / "torch._inductor.compile_worker"
    pool.symlink_to("/bin/sleep")
    before = processes.descendants()
    running = subprocess.Popen([str(pool), "63"])
    time.sleep(0.1)
    assert processes.started_after(before) == []
    running.kill()
    running.wait()


STUCK = """
import itertools, os, sys
from pytest_regional._base import limits

limits.GRACE = 0.5
with limits.time_limit(0.3):
    all(itertools.repeat(True))  # a loop in C that looks at no signal
"""


STUBBORN = """
import time

def go_on():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""


def test_code_that_cannot_be_interrupted_ends_its_process_with_the_stacks():
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Timeout (0:00:00.8" in done.stderr
    assert "line 7 in <module>" in done.stderr


def test_code_that_cannot_be_interrupted_ends_its_process_under_a_limit_of_processor_time_too():
    stuck = STUCK.replace("pytest_regional._base import limits", "pytest_regional.fuzz import budget as limits")
    stuck = stuck.replace("GRACE = 0.5", "GRACE = 0.01").replace("time_limit", "cpu_limit")
    done = subprocess.run([sys.executable, "-c", stuck], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Timeout (0:00:01.5" in done.stderr


def test_it_has_ten_seconds_more(monkeypatch):
    armed = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, **rest: armed.append(seconds))
    with time_limit(5):
        assert armed == [15]


def test_without_a_hang_nothing_is_left_armed():
    quiet = STUCK.replace("all(itertools.repeat(True))", "pass") + "\nimport time; time.sleep(1.2); print('alive')"
    done = subprocess.run([sys.executable, "-c", quiet], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_code_that_catches_the_interruption_and_goes_on_ends_then():
    stubborn = STUBBORN + STUCK.replace("all(itertools.repeat(True))", "go_on()")
    done = subprocess.run([sys.executable, "-c", stubborn], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Timeout (0:00:00.8" in done.stderr
