"""Workers of pytest-xdist for the server's side of ``warm_process``: forked where torch is imported, as their run is.

A run that asks for workers forks a helper before it imports anything; the helper forks the workers. pytest-xdist has
execnet start interpreters, so what is replaced is execnet's own class for that.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from warm_ending import run_and_leave

#: A request and its answer are one packet each.
PACKET_BYTES = 2**17


def asked_for(arguments: Sequence[str]) -> bool:
    """Tell whether ``arguments`` of pytest ask for workers, where processes can be forked for them (on Linux)."""
    return hasattr(os, "pidfd_open") and any(argument.startswith(("-n", "--numprocesses")) for argument in arguments)


Become = Callable[[Mapping[str, Any]], None]


def replace_execnets(may_be_forked: Callable[[Mapping[str, str]], bool], become: Become) -> None:
    """Fork the helper; from here on this process's workers are the helper's children.

    Args:
        may_be_forked: tells whether a worker in that environment may be forked; the others are new interpreters.
        become: gives a forked process its folder, environment, search path and signals.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        here.close()
        _help(there, become)
    there.close()

    from execnet.gateway_io import Popen2IOMaster, popen_bootstrapline

    original = Popen2IOMaster.__init__

    def start(self: Any, command: list[str], execmodel: Any) -> None:
        environment = dict(os.environ)
        if command != [sys.executable, "-u", "-c", popen_bootstrapline] or not may_be_forked(environment):
            original(self, command, execmodel)
            return
        self.popen = _Worker(here, environment, popen_bootstrapline)
        super(Popen2IOMaster, self).__init__(self.popen.stdin, self.popen.stdout, execmodel=execmodel)

    Popen2IOMaster.__init__ = start


class _Worker:
    """What execnet uses of ``subprocess.Popen``."""

    def __init__(self, helper: socket.socket, environment: Mapping[str, str], program: str) -> None:
        read_by_worker, written = os.pipe()
        read, written_by_worker = os.pipe()
        request = {"environment": environment, "folder": os.getcwd(), "program": program}
        theirs = [read_by_worker, written_by_worker, 2]
        socket.send_fds(helper, [json.dumps(request).encode()], theirs)
        for number in theirs[:2]:
            os.close(number)
        # A number of a process may be another's once the helper has seen its end; what the helper opened is not.
        answer, opened, *_ = socket.recv_fds(helper, PACKET_BYTES, 1)
        self.pid, self._process = int(answer), opened[0]
        self.stdin, self.stdout = os.fdopen(written, "wb"), os.fdopen(read, "rb")

    def kill(self) -> None:
        """End it, unless it has ended."""
        try:
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        except ProcessLookupError:
            return

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; how it ended is known to the helper alone."""
        if not select.select([self._process], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a worker", timeout or 0)
        return 0


def _help(requests: socket.socket, become: Become) -> NoReturn:
    """Fork a worker for each request, until the run has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        packet, files, *_ = socket.recv_fds(requests, PACKET_BYTES, 3)
        if not packet:
            os._exit(0)
        ready, go = os.pipe()
        number = os.fork()
        if number == 0:
            os.close(go)
            os.read(ready, 1)
            for opened in (ready, requests.fileno()):
                os.close(opened)
            _work(json.loads(packet), files, become)
        os.close(ready)
        opened = os.pidfd_open(number)
        socket.send_fds(requests, [str(number).encode()], [opened])
        for mine in (opened, go, *files):
            os.close(mine)


def _work(request: dict[str, Any], files: Sequence[int], become: Become) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, opened in enumerate(files):
        os.dup2(opened, number)
        os.close(opened)
    become(request)
    sys.argv[:] = ["-c"]
    sys.orig_argv = [sys.executable, "-u", "-c", request["program"]]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    run_and_leave(lambda: exec(request["program"], main.__dict__))
