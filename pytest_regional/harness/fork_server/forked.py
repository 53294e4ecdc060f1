"""What a forked process does before and after its module runs: as an interpreter that is started with ``-m``."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import resource
import runpy
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn


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


def _inherit(state: Mapping[str, Any]) -> None:
    for name, limit in state["limits"].items():
        if tuple(limit) != resource.getrlimit(getattr(resource, name)):
            resource.setrlimit(getattr(resource, name), tuple(limit))
    os.umask(state["umask"])
    for number in state["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, state["blocked"])


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
    except SystemExit as exit_:
        status = _status(exit_)
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
    _inherit(request.state)
    tempfile.tempdir = None
    _seed()
    first = [] if getattr(sys.flags, "safe_path", False) else [os.getcwd()]
    added = [path for path in request.environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    # What a .pth file names is not added again.
    sys.path[:] = [*first, *added, *(path for path in search_path if path not in added)]
    sys.argv[:] = [request.module, *request.arguments]
    sys.orig_argv[:] = [sys.executable, "-m", request.module, *request.arguments]
    for name in [name for name in sys.modules if name.partition(".")[0] in forget]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _seed() -> None:
    """Begin random numbers anew, as Python's own generator does in a fork."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _status(raised: SystemExit) -> int:
    if raised.code is None or isinstance(raised.code, int):
        return raised.code or 0
    print(raised.code, file=sys.stderr)
    return 1


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


__all__ = ["Request", "inherited", "run", "wait_and_clean_up"]
