"""Processes that a row times: each new in all but the imports, which none of the two sides pays."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.warm_process import run_module

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 300


def timed_module(
    module: str, arguments: Sequence[str], folder: Path = ROOT, more: Mapping[str, str] | None = None
) -> tuple[float, str]:
    """Run ``python -m module arguments`` in a process forked where torch is imported; return seconds and its output.

    Raises:
        RuntimeError: it failed; what it printed is on standard error.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(more or {})}
    begin = time.perf_counter()
    done = run_module(module, arguments, folder, environment, LIMIT_SECONDS)
    seconds = time.perf_counter() - begin
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
        raise RuntimeError(f"python -m {module} {' '.join(arguments)} ended with status {done.returncode}")
    return seconds, done.stdout
