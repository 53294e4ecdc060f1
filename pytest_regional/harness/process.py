"""Run a function in a new process that shares this test's cache folder: the honest cold/warm test."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pytest_regional._base import processes
from pytest_regional._base.errors import RegionalError
from pytest_regional._base.text import SecretVariables
from pytest_regional.harness.counters import Counters
from pytest_regional.harness.fork_server.client import (
    ForkedProcess,
    ForkServer,
    ForkServerError,
    fork_piped,
)

#: For what an ended process has left in the pipe.
_DRAIN_SECONDS = 5.0

#: What pytest says about the running test; an interpreter that has it takes itself for a part of that test.
_OF_THIS_TEST = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER")


class ProcessResult(NamedTuple):
    """What a fresh interpreter returned: the value of the call, and the counters moved by it."""

    value: Any
    counters: Counters


class NewProcessError(RegionalError, AssertionError):
    """The call failed in the fresh interpreter; the message holds its traceback and what it printed."""


@dataclass(frozen=True)
class Job:
    """What the child needs; plain data, pickled to a file.

    ``file`` is the source file of the function's module: test modules are rarely importable by name elsewhere.
    ``moved_caches`` are the variables by which the test moved its caches.
    """

    module: str
    qualname: str
    file: str | None
    arguments: bytes
    harness: dict[str, Any]
    search_path: tuple[str, ...]
    moved_caches: Mapping[str, str] = field(default_factory=dict)


def job_for(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    harness: dict[str, Any],
    moved_caches: Mapping[str, str] | None = None,
) -> Job:
    """Describe a call so that another interpreter can make it."""
    qualname = getattr(function, "__qualname__", "")
    if not callable(function) or not qualname or "<" in qualname:
        raise TypeError(
            f"in_new_process needs a function defined at the top of a module, not {function!r}: "
            f"a fresh interpreter can only find it by its name"
        )
    try:
        pickled = pickle.dumps(arguments)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"the arguments of in_new_process must be picklable: {error}") from error
    module = function.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    return Job(module, qualname, file, pickled, harness, tuple(p for p in sys.path if p), moved_caches or {})


def call_in_new_process(
    job: Job, timeout: float | None, starts: NewProcesses | None = None, *, fresh_interpreter: bool = False
) -> tuple[ProcessResult, bool]:
    """Make the call described by ``job`` in a new process; say whether the backend under test compiled there.

    Args:
        job: the call, from :func:`job_for`.
        timeout: seconds after which the child is killed; ``None`` for no limit.
        starts: starts the process; by default, it is an interpreter.
        fresh_interpreter: whether it is an interpreter of its own in any case.

    Raises:
        NewProcessError: the call raised, the child died, or the time was up.
        pytest.skip.Exception: the call skipped there.
    """
    with tempfile.TemporaryDirectory(prefix="pytest-regional-process-", ignore_cleanup_errors=True) as folder:
        # The call may go to another working folder.
        request, answer = Path(folder, "request").absolute(), Path(folder, "answer").absolute()
        request.write_bytes(pickle.dumps(job))
        environment = interpreter_environment(**{processes.VARIABLE: str(request.with_name("stacks"))})
        arguments = [str(request), str(answer), str(os.getpid())]
        starts = starts or NewProcesses()
        try:
            done = starts.run(
                "pytest_regional.harness._child", arguments, environment, timeout, fresh_interpreter=fresh_interpreter
            )
        except subprocess.TimeoutExpired as error:
            raise NewProcessError(
                f"the new process did not answer within {timeout:g} s and was killed\n{error.stdout!s}"
            ) from None
        except ForkServerError as error:
            raise NewProcessError(str(error)) from None
        output = f"exit status {done.returncode}{starts.how}; it printed:\n{done.stdout}"
        if not answer.exists():
            raise NewProcessError(f"the new process ended without an answer\n{output}")
        told = pickle.loads(answer.read_bytes())
    if told["kind"] == "value":
        return ProcessResult(told["value"], Counters(told["counters"])), told["compiled"]
    if told["kind"] == "skip":
        import pytest

        pytest.skip(f"skipped in the new process: {told['text']}")
    raise NewProcessError(f"the call failed in the new process:\n{told['text']}\n{output}")


#: What is printed is read as this, whatever the locale.
_ENCODING = {"PYTHONIOENCODING": "utf-8:backslashreplace"}


class ForkServers:
    """The servers of a run, which processes are forked from in turns.

    Args:
        count: how many: the processes of each have hash seeds of their own.
        device: the only device that its processes compile for; empty where it is not known.

    Attributes:
        turns: the server whose turn it is, again and again.
    """

    def __init__(self, count: int, device: str = "") -> None:
        self.device = device
        environment = interpreter_environment(**_ENCODING)
        preload = "harness_for_cpu" if device == "cpu" else "harness"
        self._servers = [ForkServer(environment, preload) for _ in range(count)]
        self.turns = itertools.cycle(self._servers)

    def end(self) -> None:
        """End all of them."""
        for server in self._servers:
            server.end()


@dataclass
class NewProcesses:
    """Starts the new processes of one test, and counts how.

    Attributes:
        servers: what they are forked from; ``None``: each is an interpreter of its own.
        device: the device under test.
        unclocked: is around what is on no test's clock: the start of a server.
        forked: how many were.
        interpreters: how many were not, though there are servers, by reason.
        how: how the last one started, in words for a message; empty for an interpreter.
    """

    servers: ForkServers | None = None
    device: str = ""
    unclocked: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    forked: int = 0
    interpreters: Counter[str] = field(default_factory=Counter)
    how: str = ""

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        timeout: float | None,
        *,
        fresh_interpreter: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -m module`` to its end, as :func:`run_interpreter`.

        Raises:
            subprocess.TimeoutExpired: as there.
            ForkServerError: the server was killed meanwhile.
        """
        self.how = ""
        if self.servers is None:
            return run_interpreter(module, arguments, environment, timeout)
        process = None
        if fresh_interpreter:
            why = "the test asks for an interpreter"
        elif self.servers.device not in ("", self.device):
            why = f"the server is prepared for {self.servers.device} alone, and this is {self.device}"
        else:
            server = next(self.servers.turns)
            try:
                with self.unclocked():
                    server.start()
                there = {**environment, **_ENCODING, processes.VARIABLE: server.stacks}
                process = fork_piped(server, module, arguments, there)
            except ForkServerError as error:
                why = str(error)
        if process is None:
            self.interpreters[why] += 1
            return run_interpreter(module, arguments, environment, timeout)
        self.forked += 1
        self.how = f" (forked from a server with PYTHONHASHSEED={server.hash_seed})"
        return _finished(process, [sys.executable, "-m", module, *arguments], timeout)


def interpreter_environment(*without: str, **more: str) -> SecretVariables:
    """Return the environment of a new interpreter: that of this process, where this package can be imported.

    What pytest says about the running test is left out.

    Args:
        without: names of further variables that are left out.
        more: variables to add.
    """
    left_out = {*_OF_THIS_TEST, *without}
    environment = SecretVariables({name: value for name, value in os.environ.items() if name not in left_out})
    parent = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [parent, environment.get("PYTHONPATH")]))
    return SecretVariables({**environment, **more})


def run_interpreter(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    timeout: float | None,
    python: Path | str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m module`` to its end; what it prints anywhere is its ``stdout``.

    Raises:
        subprocess.TimeoutExpired: the time was up; the process was killed with all that it had started. Its ``stdout``
            holds the stacks of their threads, then what was printed.
    """
    command = [str(python), "-m", module, *arguments]
    with subprocess.Popen(
        command,
        env={**environment, **_ENCODING},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="backslashreplace",
    ) as process:
        return _finished(process, command, timeout)


def _finished(
    process: subprocess.Popen[str] | ForkedProcess, command: Sequence[str], timeout: float | None
) -> subprocess.CompletedProcess[str]:
    """Wait for the end of ``process``, as :func:`run_interpreter`."""
    try:
        printed, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        running = processes.with_all_below(process.pid)
        shown = processes.of_processes(running)
        processes.end(running)
        printed = _ended(process)
        raise subprocess.TimeoutExpired(command, timeout or 0, f"{shown}it printed:\n{printed}") from None
    except BaseException as error:
        printed = _ended(process)
        if printed and hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"The new process had printed:\n{printed}")
        raise
    return subprocess.CompletedProcess(command, process.returncode or 0, printed)


def _ended(process: subprocess.Popen[str] | ForkedProcess) -> str:
    """End ``process`` and all below it; return what they printed."""
    processes.end(processes.with_all_below(process.pid))
    try:
        return process.communicate(timeout=_DRAIN_SECONDS)[0]
    except subprocess.TimeoutExpired as error:  # something that is not below it writes to its output
        return error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
