"""Rows measured in a process of their own: ``python -m bench.child NAME ROUNDS FILE``.

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
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import rows
from bench.rows.row import Row

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 900


class RowError(Exception):
    """Rows could not be measured; the message is short, the rest is on standard error."""


class _Running:
    """The processes that are measured now, so that all end with this one, whichever thread waits for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._no_more = False

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own: what it starts ends with it."""
        with self._lock:
            if self._no_more:
                raise RowError("interrupted")
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=2, start_new_session=True)
            self._processes.add(process)
            return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill it and what it started, whether it has ended or not."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        with self._lock:
            self._processes.discard(process)

    def end_all(self) -> None:
        """Kill all, and start no more."""
        with self._lock:
            self._no_more = True
            running = tuple(self._processes)
        for process in running:
            self.end(process)


RUNNING = _Running()


def run(command: Sequence[str], environment: Mapping[str, str], limit: float = LIMIT_SECONDS) -> int:
    """Run a command to its end; return its status.

    Raises:
        RowError: it took longer than ``limit`` seconds, or the measurement was interrupted.
    """
    process = RUNNING.start(command, environment)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        raise RowError(f"not done after {limit:g} s") from None
    finally:
        RUNNING.end(process)


def measured_apart(name: str, rounds: int) -> list[Row]:
    """Measure the rows of one module in a new process, with caches of its own and without a store of kernels.

    Raises:
        RowError: it failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-", ignore_cleanup_errors=True) as folder:
        result = Path(folder, "rows.json")
        command = [sys.executable, "-m", "bench.child", name, str(rounds), str(result)]
        status = run(command, environment(folder))
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
        "OMP_WAIT_POLICY": "PASSIVE",  # two rows at a time: threads that turn while they wait take the other's core
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
