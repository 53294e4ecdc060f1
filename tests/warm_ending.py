"""How a process ends that ``warm_process`` had forked."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn


def run_and_leave(program: Callable[[], object]) -> NoReturn:
    """Run ``program`` and end the process as the interpreter would, but for taking apart what torch has imported.

    That takes a second and a half, in which what the processes share is copied.
    """
    status = 0
    try:
        program()
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - told as the interpreter tells it
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads
            stream.flush()
    os._exit(status & 0xFF)
