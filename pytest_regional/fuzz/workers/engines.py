"""What starts worker processes and says how they ended: on this machine; ``ray_cluster`` does so on a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pytest_regional.fuzz.workers.assignment import CANNOT, DECLARED_DEAD, DONE, GROWN, Assignment

#: The module that a worker process runs.
WORKER = "pytest_regional.fuzz.workers.worker"

#: Lines of a worker's output that are shown where it could not work.
_LINES = 15


@dataclass(frozen=True)
class Ending:
    """How a worker ended.

    Attributes:
        assignment: what it had to do.
        status: its exit status, negative for a signal; None where the engine does not know.
        says: in words: by which signal, or the end of its output.
        program: the program that it died of, as plain data, where it left one.
    """

    assignment: Assignment
    status: int | None
    says: str
    program: Any = None

    @property
    def by_itself(self) -> bool:
        """Whether the worker has written its own end into the store."""
        return self.status in (DONE, CANNOT, DECLARED_DEAD, GROWN)


class Engine(Protocol):
    """Starts workers, and replaces none by itself."""

    def start(self, assignment: Assignment) -> None:
        """Start a worker."""

    def endings(self) -> list[Ending]:
        """Return the workers that ended since this was last asked."""

    def stop(self) -> None:
        """Have all workers end behind the programs that they check."""

    def kill(self, name: str) -> None:
        """End a worker that does not answer."""

    def close(self) -> None:
        """End what is left."""


class LocalProcesses:
    """Worker processes on this machine.

    Args:
        pythons: by the name of an environment, its Python interpreter.
        environment: variables for all of them.
        module: what is run as a worker.
    """

    def __init__(self, pythons: Mapping[str, str], environment: Mapping[str, str], module: str = WORKER) -> None:
        self._pythons, self._environment, self._module = pythons, environment, module
        self._running: dict[str, tuple[Assignment, subprocess.Popen[bytes], Path]] = {}

    def start(self, assignment: Assignment) -> None:
        """Start a worker in a session of its own: Ctrl-C is for the process that waits for it."""
        log = assignment.scratch / "output.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [self._pythons[assignment.environment], "-m", self._module]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**self._environment, "TMPDIR": str(assignment.scratch)},
                start_new_session=True,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and says why
            process.stdin.write(assignment.dumps().encode() + b"\n")
            process.stdin.flush()
        self._running[assignment.name] = assignment, process, log

    def endings(self) -> list[Ending]:
        """Return the workers that ended since this was last asked; what they started and wrote is gone."""
        ended = []
        for name, (assignment, process, log) in list(self._running.items()):
            status = process.poll()
            if status is None:
                continue
            del self._running[name]
            _end_session(process.pid)
            says = f"ended by {signal.Signals(-status).name}" if status < 0 else _tail(log)
            ended.append(Ending(assignment, status, says, _crashed_program(assignment)))
            shutil.rmtree(assignment.scratch, ignore_errors=True)
        return ended

    def stop(self) -> None:
        """Have all workers end behind the programs that they check: their standard input ends."""
        for _, process, _ in self._running.values():
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()

    def kill(self, name: str) -> None:
        """End a worker, and what it started."""
        if name in self._running:
            _end_session(self._running[name][1].pid)

    def close(self) -> None:
        """End what is left."""
        for _, process, _ in self._running.values():
            _end_session(process.pid)
            process.wait()
        self._running.clear()


def _end_session(leader: int) -> None:
    """Kill a process that leads a session, and the compilers and kernels that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _crashed_program(assignment: Assignment) -> Any:
    """Return the program that a worker was checking when it died; None where it left nothing whole."""
    try:
        return json.loads(assignment.running.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_LINES:])


__all__ = ["Ending", "Engine", "LocalProcesses"]
