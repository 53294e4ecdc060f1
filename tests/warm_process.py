"""Processes for tests that start many: ``python -m MODULE``, forked where torch and its compilers are imported already.

The server is that of ``--regional-processes=forkserver``. No module of this project, or of the test's, is among what
processes have from it: those are what is tested.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_regional.harness.fork_server.client import ForkServer, ForkServerError

ROOT = Path(__file__).resolve().parents[1]
#: What the server has, whatever a test has set when it is started.
ENVIRONMENT = dict(os.environ)
#: What tests set besides, and no import looks at here.
READ_LATER = ("HOME", "USERPROFILE")

_SERVERS: list[ForkServer] = []


def server() -> ForkServer:
    """Return the server of this process, which is made at the first call, and ends with it."""
    if not _SERVERS:
        environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
        _SERVERS.append(ForkServer(environment, "compilers", ("pytest_regional", "tests"), READ_LATER))
        atexit.register(_SERVERS[0].end)
    return _SERVERS[0]


def run_module(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    timeout: float | None = None,
    *,
    together: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m module arguments`` in ``folder``; return its exit status and what it printed.

    With ``together`` its ``stdout`` is all it printed, as it came.

    Raises:
        subprocess.TimeoutExpired: it did not end in ``timeout`` seconds, and was killed.
    """
    command = [sys.executable, "-m", module, *arguments]
    forked = environment
    if module == "pytest" and any(one.startswith("-n") and one != "-n0" for one in arguments):
        module = "pytest_with_warm_workers"
        path = [environment.get("PYTHONPATH", ""), str(ROOT / "tests" / "warm")]
        forked = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    with tempfile.TemporaryDirectory(prefix="warm-") as scratch:
        stdout, stderr = Path(scratch, "stdout"), Path(scratch, "stderr")
        with stdout.open("ab") as out, stderr.open("ab") as err:
            output = (out.fileno(), out.fileno() if together else err.fileno())
            try:
                process = server().fork(module, arguments, forked, str(folder), output)
            except ForkServerError as error:
                warnings.warn(f"an interpreter was started: {error}", stacklevel=2)
                return _interpreter(command, folder, environment, timeout, together=together)
        late = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            late = True
            process.kill()
            process.wait()
        printed, complained = (file.read_text(errors="replace") for file in (stdout, stderr))
        if late:
            raise subprocess.TimeoutExpired(command, timeout or 0, printed, complained)
        return subprocess.CompletedProcess(command, process.returncode, printed, complained)


def _interpreter(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float | None, *, together: bool
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
        timeout=timeout,
    )


def ran(module: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> pytest.RunResult:
    """Run ``python -m module arguments``, as :func:`run_module`; print and return what ``pytester.run`` does."""
    begin = time.perf_counter()
    done = run_module(module, arguments, folder, environment)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    seconds = time.perf_counter() - begin
    return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), seconds)


def run_script(
    script: Path, environment: Mapping[str, str], timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``python script``, as :func:`run_module` runs a module.

    Raises:
        subprocess.TimeoutExpired: it did not end in ``timeout`` seconds, and was killed.
    """
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        program = f"import runpy\n\nrunpy.run_path({str(script)!r}, run_name='__main__')\n"
        Path(folder, "as_a_script.py").write_text(program)
        return run_module("as_a_script", [], Path(folder), environment, timeout)
