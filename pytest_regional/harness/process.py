"""Run a function in a fresh interpreter that shares this test's cache folder: the honest cold/warm test."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pytest_regional import _processes, _stacks
from pytest_regional._errors import RegionalError
from pytest_regional._secrets import SecretVariables
from pytest_regional.harness.counters import Counters

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
    """

    module: str
    qualname: str
    file: str | None
    arguments: bytes
    harness: dict[str, Any]
    search_path: tuple[str, ...]


def job_for(function: Callable[..., Any], arguments: tuple[Any, ...], harness: dict[str, Any]) -> Job:
    """Describe a call so that another interpreter can make it.

    Raises:
        TypeError: a function that cannot be found by name there (a lambda, a local function), or arguments that cannot
            be pickled.
    """
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
    return Job(module, qualname, file, pickled, harness, tuple(p for p in sys.path if p))


def call_in_new_process(job: Job, timeout: float | None) -> tuple[ProcessResult, bool]:
    """Make the call described by ``job`` in a fresh interpreter; say whether the backend under test compiled there.

    Args:
        job: the call, from :func:`job_for`.
        timeout: seconds after which the child is killed; ``None`` for no limit.

    Raises:
        NewProcessError: the call raised, the child died, or the time was up.
        pytest.skip.Exception: the call skipped there.
    """
    with tempfile.TemporaryDirectory(prefix="pytest-regional-process-", ignore_cleanup_errors=True) as folder:
        # The call may go to another working folder.
        request, answer = Path(folder, "request").absolute(), Path(folder, "answer").absolute()
        request.write_bytes(pickle.dumps(job))
        output = _run_child(request, answer, timeout)
        if not answer.exists():
            raise NewProcessError(f"the new process ended without an answer\n{output}")
        return _unpack(pickle.loads(answer.read_bytes()), output)


def _run_child(request: Path, answer: Path, timeout: float | None) -> str:
    environment = interpreter_environment(**{_stacks.VARIABLE: str(request.with_name("stacks"))})
    try:
        done = run_interpreter(
            "pytest_regional.harness._child", [str(request), str(answer), str(os.getpid())], environment, timeout
        )
    except subprocess.TimeoutExpired as error:
        raise NewProcessError(
            f"the new process did not answer within {timeout:g} s and was killed\n{error.stdout!s}"
        ) from None
    return f"exit status {done.returncode}; it printed:\n{done.stdout}"


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
        # What it prints is read as this, whatever the locale.
        env={**environment, "PYTHONIOENCODING": "utf-8:backslashreplace"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="backslashreplace",
    ) as process:
        try:
            printed, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            running = _processes.with_all_below(process.pid)
            shown = _stacks.of_processes(running)
            _processes.end(running)
            printed = _ended(process)
            raise subprocess.TimeoutExpired(command, timeout or 0, f"{shown}it printed:\n{printed}") from None
        except BaseException as error:
            printed = _ended(process)
            if printed and hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"The new process had printed:\n{printed}")
            raise
    return subprocess.CompletedProcess(command, process.returncode, printed)


def _ended(process: subprocess.Popen[str]) -> str:
    """End ``process`` and all below it; return what they printed."""
    _processes.end(_processes.with_all_below(process.pid))
    try:
        return process.communicate(timeout=_DRAIN_SECONDS)[0]
    except subprocess.TimeoutExpired as error:  # something that is not below it writes to its output
        return error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""


def _unpack(answer: dict[str, Any], output: str) -> tuple[ProcessResult, bool]:
    kind = answer["kind"]
    if kind == "value":
        return ProcessResult(answer["value"], Counters(answer["counters"])), answer["compiled"]
    if kind == "skip":
        import pytest

        pytest.skip(f"skipped in the new process: {answer['text']}")
    raise NewProcessError(f"the call failed in the new process:\n{answer['text']}\n{output}")
