"""Rows measured in a process of their own: ``python -m tests.benchmarks.child NAME ROUNDS FILE``.

So that rows share no caches, threads, memory or crash, and what starts them never imports torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks import rows
from tests.benchmarks.rows.row import Row

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 900


class RowError(Exception):
    """Rows could not be measured; the message is short, the rest is on standard error."""


def measured_apart(name: str, rounds: int) -> list[Row]:
    """Measure the rows of one module in a new process, with caches of its own and without a store of kernels.

    Raises:
        RowError: it failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-", ignore_cleanup_errors=True) as folder:
        result = Path(folder, "rows.json")
        command = [sys.executable, "-m", "tests.benchmarks.child", name, str(rounds), str(result)]
        # A session of its own: where it takes too long, its processes end with it.
        process = subprocess.Popen(command, cwd=ROOT, env=environment(folder), stdout=2, start_new_session=True)
        try:
            status = process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise RowError(f"not done after {LIMIT_SECONDS} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not result.exists():
            raise RowError(f"the process ended with status {status}")
        found = json.loads(result.read_text())
    if "error" in found:
        raise RowError(found["error"])
    claims = rows.module(name).CLAIMS
    return [Row(claim, *map(tuple, values), note) for claim, (*values, note) in zip(claims, found["rows"], strict=True)]


def environment(folder: str) -> dict[str, str]:
    """Return what both sides of a row get: nothing compiled before, and one compile at a time."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TORCHINDUCTOR_"))}
    return {
        **kept,
        "PYTEST_REGIONAL_KERNEL_STORE": "off",
        "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def main(name: str, rounds: int, result: Path) -> None:
    """Measure; leave the numbers, or the error, in ``result``."""
    try:
        found = rows.module(name).measure(rounds)
    except Exception as error:
        result.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        raise
    result.write_text(json.dumps({"rows": [(row.ours, row.theirs, row.figures, row.note) for row in found]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
