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
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from pytest_regional._base import processes
from pytest_regional.harness.fork_server.forked import Request, run

#: Of the request itself; standard input, output and error; the socket that is told number and exit status.
DESCRIPTORS = 5

#: Between two looks at whether the asking process lives, where it left its end of the socket to a fork.
_LOOK_SECONDS = 1.0

_STATUS = Path("/proc/self/status")


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
            self._tell_of_the_dead()
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
            self._let_go()
            os.close(descriptors[-1])
            return Request.read(descriptors[:-1])
        told = socket.socket(fileno=descriptors.pop())
        for descriptor in descriptors:
            os.close(descriptor)
        self._forked[number] = told
        _tell(told, number)
        return None

    def _let_go(self) -> None:
        """Give up, in a forked process, what is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, self._at_start)
        for one in (self._control, self._woken, self._wakes, *self._forked.values()):
            one.close()

    def _tell_of_the_dead(self) -> None:
        for number in list(self._forked):
            ended, status = os.waitpid(number, os.WNOHANG)
            if ended:
                told = self._forked.pop(number)
                _tell(told, os.waitstatus_to_exitcode(status))
                told.close()

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


_PRINT_PATH = "import json, sys; print(json.dumps(sys.path[0 if getattr(sys.flags, 'safe_path', False) else 1 :]))"


def own_search_path() -> list[str]:
    """Return where this interpreter looks for modules after the working folder and ``PYTHONPATH``.

    An interpreter without ``PYTHONPATH`` tells: what is there, and in a ``.pth`` file too, is in a search path once.

    Raises:
        subprocess.CalledProcessError: it does not start.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    printed = subprocess.run(
        [sys.executable, "-c", _PRINT_PATH], env=environment, capture_output=True, encoding="utf-8", check=True
    )
    found: list[str] = json.loads(printed.stdout.splitlines()[-1])
    return found


def compilers() -> None:
    """Import PyTorch and its compilers, and what runs tests: nothing of this package that its tests look at."""
    for name in ("numpy", "pytest"):
        importlib.import_module(name)

    from pytest_regional._torch.triton import import_all, prepare_for_cpu

    import_all()
    prepare_for_cpu()
    _keep()


def harness_for_cpu() -> None:
    """As :func:`harness`, for processes that compile for nothing but the CPU."""
    from pytest_regional._torch.triton import prepare_for_cpu

    harness()
    prepare_for_cpu()
    _keep()


def harness() -> None:
    """Import the harness, and all that its first compile does."""
    for name in _HARNESS:
        importlib.import_module(name)

    from pytest_regional._torch.triton import import_all

    import_all()
    _keep()


def _keep() -> None:
    gc.collect()
    gc.freeze()  # processes collect only what is theirs, and do not copy what they share
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)  # libraries complain of what is not collected at the end


#: What the client may ask the server to import.
_PRELOADS = {"nothing": _keep, "compilers": compilers, "harness": harness, "harness_for_cpu": harness_for_cpu}


def main() -> None:
    """Import, tell, serve; in a forked process: be what is requested."""
    control = socket.socket(fileno=int(sys.argv[1]))
    asker, prepare, forget = int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    search_path = own_search_path()
    _PRELOADS[prepare]()
    told = {"problem": _problem(), "modules": _folders_of_modules()}
    control.sendall(json.dumps(told).encode() + b"\n")
    called = processes.call_this_a_server()
    request = Server(control, asker).serve()
    processes.call_this(called)
    run(request, search_path, forget)


if __name__ == "__main__":
    main()
