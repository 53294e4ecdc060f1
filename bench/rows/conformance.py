"""A part of the conformance suites: on an empty store of kernels, on a filled one, and by two workers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from .processes import ROOT
from .row import Claim, Row, Target

#: Small programs and a block of a model, forward alone and training. All suites would take a quarter of an hour a turn;
#: in so small a part of them what each process imports counts for much more.
FILES = (
    "suites/regions/test_values.py::test_sizes_that_no_vector_divides[(2, 33)]",
    "suites/models/test_norm_residual_silu.py",
)
CLAIMS = (
    Claim(
        "conformance, a part of it: second run",
        "kernel store filled by the first",
        "first run, store empty",
        "s",
        Target("at most 1/4", most=1 / 4),
    ),
    Claim(
        "conformance, a part of it: two workers",
        "`-n 2`, store filled",
        "serial, store filled",
        "s",
        Target("at least 1.7 times as fast", least=1.7),
        "theirs / ours",
        "{:.2f} x",
    ),
)


def seconds_of(store: str, *arguments: str) -> float:
    """Time a whole run, imports of the interpreter included, as it is for users."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--regional-backend=reference"]
    command += ["--regional-device=cpu", f"-oregional_kernel_store={store}", *arguments, *FILES]
    # Every test has cache folders of its own, so the store is all that the second run can find.
    given = "TORCHINDUCTOR_CACHE_DIR", "PYTEST_REGIONAL_KERNEL_STORE"
    environment = {name: value for name, value in os.environ.items() if name not in given}
    begin = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=sys.stderr)
    return time.perf_counter() - begin


def measure(rounds: int) -> list[Row]:
    """Run cold, again, and with two workers: each round with a new store."""
    cold, second, shared = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as store:
            cold.append(seconds_of(store))
            second.append(seconds_of(store))
            shared.append(seconds_of(store, "-n", "2"))
    return [CLAIMS[0].row(second, cold), CLAIMS[1].row(shared, second)]
