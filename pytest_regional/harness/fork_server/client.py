"""Starts a server, and processes that are forked from it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from pytest_regional._base import processes
from pytest_regional._base.errors import RegionalError
from pytest_regional._base.processes import VARIABLE as STACKS
from pytest_regional._base.text import SecretVariables
from pytest_regional.harness.fork_server.server import Request, inherited

#: Beginnings of variables that are read each time they are needed, or by nothing that a server imports. Any other may
#: be read while torch, or a library that it loads, is imported: TORCH_LOGS, TORCHINDUCTOR_*, OMP_NUM_THREADS, ...
READ_LATER = (
    "PYTEST_",
    "PYTHONPATH",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_REDIS_",
    "TRITON_CACHE_DIR",
    "TRITON_CACHE_MANAGER",
    "TRITON_PTXAS_PATH",
    "TMPDIR",
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "PY_COLORS",
    "GITHUB_",
    "GITLAB_CI",
    "CI_PROJECT_DIR",
    # PyTorch's notes to code that it generated in this very process.
    "_TORCH",
)

#: Variables that have a library measure an interpreter from its start.
_MEASURES = ("COVERAGE_PROCESS_", "COV_CORE_")

#: Modules that an interpreter imports by itself as it starts, wherever it finds them.
_AT_START = {"sitecustomize", "usercustomize"}

_SUFFIXES = (".py", ".pyc", ".so")


def why_environment_differs(server: Mapping[str, str], process: Mapping[str, str], read_later: tuple[str, ...]) -> str:
    """Return why a process with an environment needs an interpreter of its own; empty where it does not.

    No value is named: it may be a secret.
    """
    for name in sorted(process):
        if name.startswith(_MEASURES):
            return f"{name} is set, which measures an interpreter from its start"
    names = sorted(
        name
        for name in {*server, *process}
        if server.get(name) != process.get(name) and not name.startswith(read_later)
    )
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"its environment is not the server's: {', '.join(names[:3])}{more}"


def why_search_path_differs(folder: str, environment: Mapping[str, str], imported: Mapping[str, str]) -> str:
    """Return which module a process would find elsewhere than the server did; empty where there is none.

    Args:
        folder: the working folder, where it looks first.
        environment: of the process; ``PYTHONPATH`` names where it looks next.
        imported: of each module that the server has imported, the folder that it was found in.
    """
    added = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    for place, names in [(folder, imported.keys()), *((path, imported.keys() | _AT_START) for path in added)]:
        absolute = os.path.join(folder, place)
        for name in sorted(names & _modules_in(absolute)):
            if imported.get(name) not in (absolute, os.path.realpath(absolute)):
                return f"{name} in {place} differs from the server's"
    return ""


def _modules_in(folder: str) -> set[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return set()
    files = {entry.name.partition(".")[0] for entry in entries if entry.name.endswith(_SUFFIXES)}
    return files | {entry.name for entry in entries if os.path.isfile(os.path.join(entry.path, "__init__.py"))}


#: For the imports of the server, and for a fork; a machine with more to do takes longer than the 10 s and 0.1 s.
_START_SECONDS, _FORK_SECONDS = 300.0, 60.0

#: For a process that was told to end.
_END_SECONDS = 5.0

_LARGEST_SEED = 2**32 - 1


class ForkServerError(RegionalError):
    """No process can be forked, or the server ended before a process that it had forked: the message says which."""


class ForkServer:
    """A server, which is started when it is first needed and ends with this process.

    Args:
        environment: its environment, and that of the processes in all that is read when they start.
        preload: what it imports: ``nothing``, ``compilers``, ``harness`` or ``harness_for_cpu``.
        forget: packages that it has imported, and a process imports itself.
        read_later: beginnings of variables that may be different, besides :data:`READ_LATER`.

    Attributes:
        hash_seed: what hashes of text depend on in all its processes.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        preload: str,
        forget: Sequence[str] = (),
        read_later: Sequence[str] = (),
    ) -> None:
        self._environment = SecretVariables(environment)
        self._preload = preload
        self._forget = tuple(forget)
        self._read_later = (*READ_LATER, *read_later)
        seed = environment.get("PYTHONHASHSEED", "random")
        self.hash_seed = random.SystemRandom().randint(1, _LARGEST_SEED) if seed in ("", "random") else int(seed)
        self._problem = ""
        self._imported: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()

    def start(self) -> None:
        """Start the server, and wait until it has imported all; where it was started before, do nothing.

        Raises:
            ForkServerError: it cannot fork, has ended, or could not be started, once and for all.
        """
        with self._starting:
            if self._process is None and not self._problem:
                self._start()
            if self._process is not None and self._process.poll() is not None and not self._problem:
                self._problem = f"the server of new processes has ended with exit status {self._process.returncode}"
            if self._problem:
                self.end()
                raise ForkServerError(self._problem)

    @property
    def stacks(self) -> str:
        """The file that all its processes write their stacks to, as it is named in their first environment."""
        return str(Path(self._folder.name, "stacks"))

    @property
    def number(self) -> int:
        """The number of its process; 0 where none runs."""
        return self._process.pid if self._process and self._process.poll() is None else 0

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pytest-regional-server-", ignore_cleanup_errors=True)
        self._control, theirs = socket.socketpair()
        self._processors = _processors()
        # Beside its own folder, which is empty, it finds modules where its processes do.
        environment = {
            **self._environment,
            "PYTHONHASHSEED": str(self.hash_seed),
            # Where processes look for the file, which see the first environment of what they are forked from.
            STACKS: self.stacks,
            # Or the question whether there is a GPU, which an import may ask, would initialize CUDA.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        }
        command = [sys.executable, "-m", f"{__package__}.server", str(theirs.fileno()), str(os.getpid())]
        with theirs, Path(self._folder.name, "printed").open("w+b") as printed:
            self._process = subprocess.Popen(
                [*command, self._preload, *self._forget],
                cwd=self._folder.name,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
            )
            theirs.close()
            told = self._told()
            if not told:
                self._process.kill()
                self._process.wait()
                printed.seek(0)
                text = printed.read().decode(errors="backslashreplace")[-2000:]
                self._problem = f"the server of new processes did not start; it printed:\n{text}".rstrip(":\n")
                return
        found = json.loads(told)
        self._problem = f"the server of new processes cannot be used: {found['problem']}" if found["problem"] else ""
        self._imported = {name: place for name, place in found["modules"].items() if name not in self._forget}

    def _told(self) -> bytes:
        """Return the line that the server writes when it is ready; empty where it writes none."""
        line, until = b"", time.monotonic() + _START_SECONDS
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([self._control], [], [], max(0.0, until - time.monotonic()))
            more = self._control.recv(65536) if readable else b""
            if not more:
                return b""
            line += more
        return line

    def fork(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        output: Sequence[int],
    ) -> ForkedProcess:
        """Start ``python -m module arguments``.

        Args:
            module: the name of the module.
            arguments: its arguments.
            environment: its environment.
            folder: its working folder.
            output: open files for its standard output and error.

        Raises:
            ForkServerError: nothing was started, and why.
        """
        self.start()
        why = why_environment_differs(self._environment, environment, self._read_later)
        if _processors() != self._processors:
            why = why or "it may not use the processors that the server had when libraries counted them"
        why = why or why_search_path_differs(folder, environment, self._imported)
        if why:
            raise ForkServerError(why)
        request = Request(module, list(arguments), folder, environment, inherited()).as_bytes()
        try:
            told, theirs = socket.socketpair()
            reads, writes = os.pipe()
            with open(writes, "wb") as sends:
                with theirs, open(reads, "rb") as requested, _standard_input() as stdin:
                    descriptors = [requested.fileno(), stdin.fileno(), *output, theirs.fileno()]
                    socket.send_fds(self._control, [b"f"], descriptors)
                process = ForkedProcess(told)
                sends.write(request)
        except (OSError, ValueError) as error:  # it does not answer, or ended meanwhile
            self.end()
            self._problem = "the server of new processes has ended"
            raise ForkServerError(self._problem) from error
        return process

    def end(self) -> None:
        """End the server, and all that it has forked."""
        if self._process is None:
            return
        self._control.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            processes.end(processes.with_all_below(self._process.pid))
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


def _processors() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _standard_input() -> BinaryIO:
    try:
        return open(os.dup(0), "rb", buffering=0)
    except OSError:  # closed
        return open(os.devnull, "rb", buffering=0)


class ForkedProcess:
    """A process that a server has forked, used as ``subprocess.Popen`` is.

    Args:
        told: the socket that is told its number and its exit status.

    Attributes:
        pid: its number.
        returncode: its exit status, negative for the signal that ended it; ``None`` as long as it runs.
        output: the end of a pipe that all its output is read from, until the output has ended.
    """

    def __init__(self, told: socket.socket) -> None:
        self._told = told
        self._text = b""
        self.returncode: int | None = None
        self.output: BinaryIO | None = None
        self._printed = b""
        told.settimeout(_FORK_SECONDS)
        try:
            self.pid = self._number()
        except BaseException:
            told.close()
            raise
        told.settimeout(None)

    def fileno(self) -> int:
        """Return what can be read as soon as it has ended."""
        return self._told.fileno()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit status.

        Raises:
            subprocess.TimeoutExpired: it runs for longer than ``timeout`` seconds.
            ForkServerError: the server ended first.
        """
        if self.returncode is None:
            readable, _, _ = select.select([self._told], [], [], timeout)
            if not readable:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            try:
                self.returncode = self._number()
            except (OSError, ValueError):
                self.kill()
                self.returncode = -signal.SIGKILL
                raise ForkServerError(
                    "the server of new processes ended before the process that it had forked, which was killed"
                ) from None
            finally:
                self._told.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Return what it has printed by its end, after which nobody writes to the pipe.

        Raises:
            subprocess.TimeoutExpired: that takes more than ``timeout`` seconds; its ``stdout`` is bytes.
            ForkServerError: the server ended first.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self.output is not None or self.returncode is None:
            waits_for = [one for one in (self.output, self.returncode is None and self) if one]
            left = None if until is None else max(0.0, until - time.monotonic())
            readable, _, _ = select.select(waits_for, [], [], left)
            if not readable:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0, self._printed)
            if self in readable:
                self.wait()
            if self.output is not None and self.output in readable:
                more = self.output.read(65536)
                self._printed += more
                if not more:
                    self.output.close()
                    self.output = None
        text = io.TextIOWrapper(io.BytesIO(self._printed), encoding="utf-8", errors="backslashreplace")
        return text.read(), None

    def kill(self) -> None:
        """End it, with all that it has started."""
        processes.end(processes.with_all_below(self.pid))

    def _number(self) -> int:
        """Return the next number that is told."""
        while b"\n" not in self._text:
            more = self._told.recv(64)
            if not more:
                raise ValueError("the server has ended")
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        return int(line)


def fork_piped(
    server: ForkServer, module: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> ForkedProcess:
    """Start ``python -m module arguments`` in the working folder of this process; read all that it prints."""
    reads, writes = os.pipe()
    with contextlib.ExitStack() as unless_forked:
        output = unless_forked.enter_context(open(reads, "rb", buffering=0))
        with open(writes, "wb") as theirs:
            process = server.fork(module, arguments, environment, os.getcwd(), [theirs.fileno()] * 2)
        unless_forked.pop_all()
    process.output = output
    return process
