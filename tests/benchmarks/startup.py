"""Print what the plugin adds to the start of an unrelated pytest run: ``python tests/benchmarks/startup.py``."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile

RUNS = 15

# pytest itself is imported first: its cost is not ours. ``pytest_regional.fixtures`` is what the plugin loads with it.
PROBE = """
import time, pytest, sys
started = time.perf_counter()
import {modules}
print((time.perf_counter() - started) * 1000)
assert not {{"torch", "hypothesis", "numpy"}} & set(sys.modules)
"""


def milliseconds(modules: str) -> list[float]:
    """Return the import time of ``modules`` in fresh interpreters; the first, which writes byte code, is left out."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        times = [
            float(subprocess.check_output([sys.executable, "-c", PROBE.format(modules=modules)], env=environment))
            for _ in range(RUNS + 1)
        ]
    return times[1:]


def main() -> None:
    """Print medians and spreads, with xdist's plugin in the same run for scale."""
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, median of {RUNS} fresh interpreters")
    for name, modules in (
        ("pytest-regional", "pytest_regional.plugin, pytest_regional.fixtures"),
        ("pytest-xdist", "xdist.plugin"),
    ):
        times = milliseconds(modules)
        print(f"{name:16} {statistics.median(times):6.2f} ms  (from {min(times):.2f} to {max(times):.2f})")


if __name__ == "__main__":
    main()
