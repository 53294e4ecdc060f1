"""A part of the conformance suites: on an empty store of kernels, on a filled one, and by two workers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from .processes import ROOT
from .row import Claim, Row, Target
from .turns import in_turns

#: Small programs and a block of a model, forward alone and training.
FILES = (
    "suites/regions/test_values.py::test_sizes_that_no_vector_divides",
    "suites/models/test_norm_residual_silu.py",
)
#: Enough tests that what each worker imports, eight seconds, is not all that there is to share.
FOR_WORKERS = ("suites/regions/test_values.py", "suites/regions/test_values_across_borders.py")
CLAIMS = (
    Claim(
        "conformance: second run",
        "kernel store filled by the first",
        "first run, store empty",
        "s",
        Target("at most 1/4", most=1 / 4),
    ),
    Claim(
        "conformance: two workers",
        "`-n 2`, store filled",
        "serial, store filled",
        "s",
        Target("at least 1.7 times as fast", least=1.7),
        "theirs / ours",
        "{:.2f} x",
    ),
)


def seconds_of(store: str, files: Sequence[str], *arguments: str) -> float:
    """Time a whole run, imports of the interpreter included, as it is for users."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--regional-backend=reference"]
    command += ["--regional-device=cpu", f"--regional-kernel-store={store}", *arguments, *files]
    # Every test has cache folders of its own, so the store is all that the second run can find.
    given = "TORCHINDUCTOR_CACHE_DIR", "PYTEST_REGIONAL_KERNEL_STORE"
    environment = {name: value for name, value in os.environ.items() if name not in given}
    begin = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=sys.stderr)
    return time.perf_counter() - begin


def measure(rounds: int) -> list[Row]:
    """Run cold and again, each round with a new store; then serially and with two workers in turns on a filled one."""
    cold, second = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as store:
            cold.append(seconds_of(store, FILES))
            second.append(seconds_of(store, FILES))
    with tempfile.TemporaryDirectory() as store:
        seconds_of(store, FOR_WORKERS)
        ways = {
            "ours": lambda: seconds_of(store, FOR_WORKERS, "-n", "2"),
            "theirs": lambda: seconds_of(store, FOR_WORKERS),
        }
        return [CLAIMS[0].row(second, cold), CLAIMS[1].row(**in_turns(rounds, ways))]
