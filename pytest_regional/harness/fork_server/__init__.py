"""Processes forked from a server that has imported torch: new in all but these imports.

A new interpreter spends seconds on importing torch and its compilers before it compiles anything. A process from a
server does not. It is as ``python -m MODULE`` would be in all that can be looked at: environment, search path, folder,
arguments, output, limits, random generators, exit status; and nothing was compiled in it. What it cannot have of its
own is what an interpreter takes from its environment while it starts and imports, so a request that differs in such a
thing is refused, with the reason, and gets an interpreter.

* ``client``: starts a server, and processes from it, in the process that asks, if what must be equal is.
* ``server``: the program of the server, of one thread, and what it imports; what a forked process does before its
  module runs.

The fork server of ``multiprocessing`` is not used: a process has only one, tests use it too, and it would keep the
environment and modules of whoever started it.
"""

from __future__ import annotations

import os
import socket
import sys


def missing_for_fork_server() -> str:
    """Return what this system lacks; empty where processes can be forked."""
    if hasattr(os, "fork") and hasattr(socket, "send_fds"):
        return ""
    return f"{sys.platform} cannot fork processes: use spawn, the default, which starts an interpreter for each"
