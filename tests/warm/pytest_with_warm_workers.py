"""``python -m pytest``, in a process that has imported torch, whose workers of pytest-xdist need not import it again.

A process is forked before anything of pytest is imported; a worker is forked from that one, in place of an interpreter
that execnet (2.1) starts. ``tests.warm_process`` runs this module, whose folder holds nothing else.
"""

import atexit
import contextlib
import os
import pickle
import runpy
import select
import signal
import socket
import sys
import threading
import types

from execnet import gateway_base, gateway_io

_LARGEST_REQUEST = 2**20


class Worker:
    """What execnet uses of ``subprocess.Popen``."""

    def __init__(self, number, stdin, stdout):
        self.pid, self.stdin, self.stdout = number, stdin, stdout

    def wait(self):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            process = os.pidfd_open(self.pid)
            select.select([process], [], [])
            os.close(process)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


def start_worker(server):
    their_stdin, stdin = os.pipe()
    stdout, their_stdout = os.pipe()
    request = pickle.dumps((dict(os.environ), os.getcwd()))
    socket.send_fds(server, [request], [their_stdin, their_stdout, 2])
    os.close(their_stdin)
    os.close(their_stdout)
    return Worker(int(server.recv(20)), open(stdin, "wb"), open(stdout, "rb"))


def serve(control):
    """Fork a worker for each request; return in each of them, and end with the process that asks."""
    at_start = {number: signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGINT)}
    for number in at_start:
        signal.signal(number, signal.SIG_IGN)  # the dead are buried; Ctrl-C is for those that it forks
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, _LARGEST_REQUEST, 3)
        if not request:
            os._exit(0)
        number = os.fork()
        if not number:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(b"%d" % number)
    control.close()
    for number, action in at_start.items():
        signal.signal(number, action)
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    environment, folder = pickle.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)


def be_a_worker():
    """Be what execnet starts: an interpreter that reads its program."""
    for name in ("numpy", "torch"):
        if name in sys.modules:
            sys.modules[name].random.seed()
    sys.argv[:] = ["-c"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(gateway_io.popen_bootstrapline, main.__dict__)
    threading._shutdown()
    atexit._run_exitfuncs()
    os._exit(0)


def main():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        serve(theirs)
        be_a_worker()
    theirs.close()

    def start(self, arguments, execmodel):
        assert arguments[0] == sys.executable
        self.popen = start_worker(ours)
        gateway_base.Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel=execmodel)

    gateway_io.Popen2IOMaster.__init__ = start
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
