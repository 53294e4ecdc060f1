"""Processes for tests that start many: ``python -m MODULE``, forked where torch and its compilers are imported already.

A new interpreter spends eight seconds of CPU on imports before it compiles anything. The processes here are as new as
any other in all that tests look at: nothing was compiled in them, no module of this project or of the test's is
imported, folder, environment, search path and output are the request's. What torch reads from the environment while it
is imported cannot be theirs, so a request that sets such a variable gets a new interpreter.
"""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: What the server has, whatever a test has set when it is started.
ENVIRONMENT = dict(os.environ)
#: Variables that may be another in the process: what begins so is read by pytest and by this project only, or at each
#: use. Everything else may be read by the interpreter or by torch's modules when they are imported.
READ_LATER = ("PYTEST_", "PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "HOME", "USERPROFILE", "TMPDIR")
READ_LATER += ("COLUMNS", "LINES", "PY_COLORS", "NO_COLOR")
READ_LATER += ("GITHUB_", "GITLAB_CI", "CI_PROJECT_DIR")
READ_LATER += ("TORCHINDUCTOR_REDIS_", "GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "TRITON_CACHE_MANAGER")
#: PyTorch's notes to code that it generated in this very process.
READ_LATER += ("_TORCH",)

_FORKSERVER = multiprocessing.get_context("forkserver")
_FORKSERVER.set_forkserver_preload(["tests.warm_imports"])


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
    if _read_on_import(environment) != _read_on_import(ENVIRONMENT):
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
    with tempfile.TemporaryDirectory(prefix="warm-") as scratch:
        stdout, stderr = Path(scratch, "stdout"), Path(scratch, "stderr")
        files = stdout, stdout if together else stderr
        for file in (stdout, stderr):
            file.touch()
        process = _FORKSERVER.Process(
            target=_be, args=(module, list(arguments), str(folder), dict(environment), *map(str, files))
        )
        _start(process)
        process.join(timeout)
        late = process.exitcode is None
        process.kill()
        process.join()
        printed, complained = (file.read_text(errors="replace") for file in (stdout, stderr))
        if late:
            raise subprocess.TimeoutExpired(command, timeout or 0, printed, complained)
        return subprocess.CompletedProcess(command, process.exitcode, printed, complained)


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


def _read_on_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process has from the server that it is forked from."""
    return {name: value for name, value in environment.items() if not name.startswith(READ_LATER)}


def _start(process: multiprocessing.process.BaseProcess) -> None:
    """Start ``process``, and before it the server if that does not run: in folder and environment of its own."""
    environment = mock.patch.dict(os.environ, {**ENVIRONMENT, "PYTHONPATH": ""}, clear=True)
    with environment, pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))  # or the process would import ours
        process.start()


def _be(module: str, arguments: list[str], folder: str, environment: dict[str, str], stdout: str, stderr: str) -> None:
    """Be ``python -m module arguments``, in a process that the server has forked."""
    from tests.warm_imports import SEARCH_PATH

    for number, file in ((1, stdout), (2, stderr)):
        opened = os.open(file, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    added = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [os.getcwd(), *added, *SEARCH_PATH]
    sys.argv[1:] = arguments
    multiprocessing.set_start_method(None, force=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # it may have tests of its own
    importlib.invalidate_caches()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception:  # noqa: BLE001 - told as the interpreter tells it
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out
