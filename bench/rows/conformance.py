"""Suites of a minute: on an empty store of kernels, on a filled one, and by two workers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from .processes import ROOT
from .row import Claim, Row, Target

#: All suites would take a quarter of an hour a turn; in a smaller part what each process imports counts for more.
SUITES = ("suites/control_deps", "suites/models")
CLAIMS = (
    Claim(
        "conformance, suites of a minute: second run",
        "kernel store filled by the first",
        "first run, store empty",
        "s",
        Target("at most 1/2", most=1 / 2),
    ),
    Claim(
        "conformance, suites of a minute: two workers",
        "`-n 2`, store filled",
        "serial, store filled",
        "s",
        Target("at least 1.6 times as fast", least=1.6),
        "theirs / ours",
        "{:.2f} x",
    ),
)


def seconds_of(folder: str, *arguments: str) -> float:
    """Time a whole run, imports included, as it is for users; what it keeps is in ``folder``."""
    command = [sys.executable, "-m", "pytest", "-q", "--regional-backend=reference", "--regional-device=cpu"]
    command += [f"-ocache_dir={folder}/pytest", f"-oregional_kernel_store={folder}/kernels", *arguments, *SUITES]
    # Every test has cache folders of its own, so the store is all that the second run can find.
    given = "TORCHINDUCTOR_CACHE_DIR", "PYTEST_REGIONAL_KERNEL_STORE"
    environment = {name: value for name, value in os.environ.items() if name not in given}
    begin = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=sys.stderr)
    return time.perf_counter() - begin


def measure(rounds: int) -> list[Row]:
    """Run cold, again, and with two workers: each turn with a new store; a turn for two rounds, as it takes minutes."""
    cold, second, shared = [], [], []
    for _ in range((rounds + 1) // 2):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(seconds_of(folder))
            second.append(seconds_of(folder))
            shared.append(seconds_of(folder, "-n", "2", "--dist", "worksteal"))
    return [CLAIMS[0].row(second, cold), CLAIMS[1].row(shared, second)]
