"""Processes for tests that start many: ``python -m MODULE``, forked where torch and its compilers are imported already.

A new interpreter spends eight seconds of CPU on imports before it compiles anything. The processes here are as new as
any other in all that tests look at: nothing was compiled in them, no module of this project or of the test's is
imported, folder, environment, search path and output are the request's. What torch reads from the environment while it
is imported cannot be theirs, so a request that sets such a variable gets a new interpreter.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from filelock import FileLock

SERVER = Path(__file__).parent / "warm_server.py"
#: Variables that may be another in the process: what begins so is read by pytest and by this project only, or at each
#: use. Everything else may be read by the interpreter or by torch's modules when they are imported.
READ_LATER = ("PYTEST_", "PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "HOME", "USERPROFILE", "TMPDIR")
READ_LATER += ("COLUMNS", "LINES", "PY_COLORS", "NO_COLOR")
READ_LATER += ("TORCHINDUCTOR_REDIS_", "GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "TRITON_CACHE_MANAGER")
#: PyTorch's notes to code that it generated in this very process.
READ_LATER += ("_TORCH",)


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
    server = _server_for(environment)
    if server is None:
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
        printed, complained = Path(scratch, "stdout"), Path(scratch, "stderr")
        printed.touch()
        complained.touch()
        request = {
            "module": module,
            "arguments": list(arguments),
            "folder": str(folder),
            "environment": dict(environment),
            "stdout": str(printed),
            "stderr": str(printed if together else complained),
        }
        try:
            status = server.run(request, timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(command, timeout or 0, _text(printed), _text(complained)) from None
        return subprocess.CompletedProcess(command, status, _text(printed), _text(complained))


def _text(file: Path) -> str:
    """Return what was printed, which may be anything."""
    return file.read_text(errors="replace")


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


def fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process has from the interpreter that it was forked from."""
    return {name: value for name, value in environment.items() if not name.startswith(READ_LATER)}


class _Server:
    """A connection to the process that forks; that process ends when the last of its clients has."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        folder = Path(tempfile.gettempdir(), f"warm-{os.getuid()}-{_RUN}")  # short: so are addresses of sockets
        folder.mkdir(mode=0o700, exist_ok=True)
        name = hashlib.sha256(repr(sorted(fixed(environment).items())).encode()).hexdigest()[:16]
        address = folder / name
        self._connection = socket.socket(socket.AF_UNIX)
        with FileLock(folder / f"{name}.lock"):
            try:
                self._connection.connect(str(address))
            except (FileNotFoundError, ConnectionRefusedError):
                _start(address, environment)
                self._connection.connect(str(address))

    def run(self, request: Mapping[str, object], timeout: float | None) -> int:
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        number = int(self._answer(None))
        try:
            return int(self._answer(timeout))
        except TimeoutError:
            os.kill(number, signal.SIGKILL)
            self._answer(None)
            raise

    def _answer(self, timeout: float | None) -> str:
        if not select.select([self._connection], [], [], timeout)[0]:
            raise TimeoutError
        line = b""
        while not line.endswith(b"\n"):  # unbuffered, so that select sees what was not read yet
            read = self._connection.recv(1)
            if not read:
                raise RuntimeError("the server of processes ended")
            line += read
        return line.decode().strip()


def _start(address: Path, environment: Mapping[str, str]) -> None:
    """Start the server, and return when it listens."""
    address.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(address)],
        env={**environment, "PYTHONPATH": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "ready\n", "no server of processes"
    process.wait(10)  # it has left the server behind, which is nobody's child


#: The run of pytest whose workers have their servers together.
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")[:16] or str(os.getpid())
#: One for each environment that was asked for twice; the first is there from the first request on.
_SERVERS: dict[frozenset[tuple[str, str]], _Server] = {}
_ASKED: set[frozenset[tuple[str, str]]] = set()
_MOST_SERVERS = 3  # each holds half a gigabyte


def _server_for(environment: Mapping[str, str]) -> _Server | None:
    """Return the server of processes in ``environment``, ``None`` where an interpreter of their own is cheaper."""
    key = frozenset(fixed(environment).items())
    if key not in _SERVERS and len(_SERVERS) < _MOST_SERVERS and (key in _ASKED or not _SERVERS):
        _SERVERS[key] = _Server(environment)
    _ASKED.add(key)
    return _SERVERS.get(key)
