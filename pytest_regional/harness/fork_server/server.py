"""The program of the server: ``python -m pytest_regional.harness.fork_server.server SOCKET ASKER PRELOAD [FORGET...]``.

It imports what ``PRELOAD``, a key of ``_PRELOADS``, says, and tells on the socket with this number, in a line of
JSON, what it has imported, or why no process may be forked from it. Then each byte that comes with :data:`DESCRIPTORS`
file descriptors is a request: it forks. The forked process forgets the modules ``FORGET`` and is what is requested.
The server ends when the process ``ASKER`` does, or closes its end of the socket, and so do all
that it has forked.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pytest_regional._base import processes

#: Of the request itself; standard input, output and error; the socket that is told number and exit status.
DESCRIPTORS = 5

#: Between two looks at whether the asking process lives, where it left its end of the socket to a fork.
_LOOK_SECONDS = 1.0

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Request:
    """What a process is to be; plain data, sent as JSON.

    Attributes:
        module: run as ``__main__``.
        arguments: of the module.
        folder: the working folder.
        environment: all variables.
        state: what a process has from the one that starts it: see :func:`inherited`.
    """

    module: str
    arguments: Sequence[str]
    folder: str
    environment: Mapping[str, str]
    state: Mapping[str, Any]

    def __repr__(self) -> str:
        """Return text without the environment, which holds secrets."""
        return f"<Request {self.module}>"

    def as_bytes(self) -> bytes:
        """Return it as bytes."""
        return json.dumps({**vars(self), "environment": dict(self.environment)}).encode()

    @staticmethod
    def read(descriptors: Sequence[int]) -> Request:
        """Take standard input, output and error, and read the request, from the descriptors that came with it."""
        requested, *standard = descriptors
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
            os.close(descriptor)
        with open(requested, "rb") as file:
            return Request(**json.load(file))


def inherited() -> dict[str, Any]:
    """Return what a process that this one starts has from it, besides its environment and its open files."""
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
    mask = os.umask(0)
    os.umask(mask)
    return {
        "limits": limits,
        "umask": mask,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
    }


def run(request: Request, search_path: Sequence[str], forget: Sequence[str]) -> NoReturn:
    """Be ``python -m MODULE ARGUMENTS``, to its end.

    Args:
        request: what is run.
        search_path: where the interpreter looks for modules after the working folder and ``PYTHONPATH``.
        forget: packages of the server that the process is to import itself.
    """
    status = 1
    try:
        _prepare(request, search_path, forget)
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as raised:
        if raised.code is None or isinstance(raised.code, int):
            status = raised.code or 0
        else:
            print(raised.code, file=sys.stderr)
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        status = -signal.SIGINT
    except BaseException:  # noqa: BLE001 - told as the interpreter tells it
        sys.excepthook(*sys.exc_info())
    _end(status)


def _prepare(request: Request, search_path: Sequence[str], forget: Sequence[str]) -> None:
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    state = request.state
    for name, limit in state["limits"].items():
        if tuple(limit) != resource.getrlimit(getattr(resource, name)):
            resource.setrlimit(getattr(resource, name), tuple(limit))
    os.umask(state["umask"])
    for number in state["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, state["blocked"])
    tempfile.tempdir = None
    # Random numbers begin anew, as Python's own generator's do in a fork.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    first = [] if getattr(sys.flags, "safe_path", False) else [os.getcwd()]
    added = [path for path in request.environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    # What a .pth file names is not added again.
    sys.path[:] = [*first, *added, *(path for path in search_path if path not in added)]
    sys.argv[:] = [request.module, *request.arguments]
    sys.orig_argv[:] = [sys.executable, "-m", request.module, *request.arguments]
    for name in [name for name in sys.modules if name.partition(".")[0] in forget]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _end(status: int) -> NoReturn:
    """End as an interpreter does, but for taking apart what was imported, which takes a second."""
    wait_and_clean_up()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, or nobody reads it
            status = status or 120  # as an interpreter does
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


def wait_and_clean_up() -> None:
    """Wait for threads, and call what is registered for the end of the process, in the interpreter's order.

    ``threading._shutdown`` (3.10 to 3.14) is what the interpreter and multiprocessing call at an end; pools of threads
    have registered there that their threads are to end.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


class Server:
    """Forks a process for each request.

    Args:
        control: the socket that requests come from.
        asker: the number of the process at its other end.
    """

    def __init__(self, control: socket.socket, asker: int) -> None:
        self._control = control
        self._asker = asker
        self._forked: dict[int, socket.socket] = {}
        self._at_start = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those that it forks
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)

    def serve(self) -> Request:
        """Fork a process for each request; return, in such a process, its request."""
        while True:
            readable, _, _ = select.select([self._control, self._woken], [], [], _LOOK_SECONDS)
            if self._woken in readable:
                self._woken.recv(4096)
            for number in list(self._forked):
                ended, status = os.waitpid(number, os.WNOHANG)
                if ended:
                    told = self._forked.pop(number)
                    _tell(told, os.waitstatus_to_exitcode(status))
                    told.close()
            if os.getppid() != self._asker:
                self._end()
            if self._control in readable:
                request = self._next()
                if request is not None:
                    return request

    def _next(self) -> Request | None:
        """Fork for the request that has come; return it in the new process alone."""
        message, descriptors, _, _ = socket.recv_fds(self._control, 1, DESCRIPTORS)
        if not message:
            self._end()
        number = os.fork()
        if number == 0:
            # The new process gives up what is the server's.
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, self._at_start)
            for one in (self._control, self._woken, self._wakes, *self._forked.values()):
                one.close()
            os.close(descriptors[-1])
            return Request.read(descriptors[:-1])
        told = socket.socket(fileno=descriptors.pop())
        for descriptor in descriptors:
            os.close(descriptor)
        self._forked[number] = told
        _tell(told, number)
        return None

    def _end(self) -> NoReturn:
        for number in self._forked:
            processes.end(processes.with_all_below(number))
        os._exit(0)


def _tell(told: socket.socket, number: int) -> None:
    try:
        told.sendall(b"%d\n" % number)
    except OSError:  # who asked is gone
        return


def _problem() -> str:
    """Return why no process may be forked from this one; empty where nothing is against it."""
    number = os.fork()  # libraries end threads of their own before a fork, and begin them again when they need them
    if number == 0:
        os._exit(0)
    os.waitpid(number, 0)
    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.exists() else 1
    if threads > 1:
        return f"it has {threads} threads after its imports, and a forked process would lack all but one"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "it has initialized CUDA, which a forked process cannot use"
    return ""


def _folders_of_modules() -> dict[str, str]:
    """Return, of each imported module that is in no package, the folder that it was found in; not of built-in ones."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." not in name and name != "__main__" and isinstance(file, str):
            path = Path(file)
            found[name] = str((path.parent if path.stem == "__init__" else path).parent)
    return found


#: What a process of ``in_new_process`` imports besides torch and its compilers; not the module that it runs.
_HARNESS = (
    "pytest_regional.harness.devices.emulated",
    "pytest_regional.harness.process",
    "pytest_regional.harness.regional",
    "pytest_regional.harness.vacuity",
)

#: What the client may ask the server to import; of ``compilers`` nothing of this package, which its tests look at.
_PRELOADS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "compilers": ("numpy", "pytest"),
    "harness": _HARNESS,
    "harness_for_cpu": _HARNESS,
}

_PRINT_PATH = "import json, sys; print(json.dumps(sys.path[0 if getattr(sys.flags, 'safe_path', False) else 1 :]))"


def own_search_path() -> list[str]:
    """Return where this interpreter looks for modules after the working folder and ``PYTHONPATH``.

    An interpreter without ``PYTHONPATH`` tells: what is there, and in a ``.pth`` file too, is in a search path once.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    printed = subprocess.run(
        [sys.executable, "-c", _PRINT_PATH], env=environment, capture_output=True, encoding="utf-8", check=True
    )
    found: list[str] = json.loads(printed.stdout.splitlines()[-1])
    return found


def _preload(what: str) -> None:
    for name in _PRELOADS[what]:
        importlib.import_module(name)
    if what != "nothing":
        from pytest_regional._torch.triton import import_all, prepare_for_cpu

        import_all()
        if what != "harness":  # processes compile for nothing but the CPU
            prepare_for_cpu()
    gc.collect()
    gc.freeze()  # processes collect only what is theirs, and do not copy what they share
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)  # libraries complain of what is not collected at the end


def main() -> None:
    """Import, tell, serve; in a forked process: be what is requested."""
    control = socket.socket(fileno=int(sys.argv[1]))
    asker, what, forget = int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    search_path = own_search_path()
    _preload(what)
    told = {"problem": _problem(), "modules": _folders_of_modules()}
    control.sendall(json.dumps(told).encode() + b"\n")
    called = processes.call_this_a_server()
    request = Server(control, asker).serve()
    processes.call_this(called)
    run(request, search_path, forget)


if __name__ == "__main__":
    main()
