"""Folders of temporary files of runs that were killed: the next run removes them.

A run holds a lock on a file in its folder, which the system takes from a process that dies, however it does. What it
forked holds the lock too, as long as it lives. A folder without that file is not touched: it may be of a run that has
not got so far.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

#: What the name of a run's folder begins with.
PREFIX = "pytest-regional-"

_LOCK = "lock"


def hold(folder: Path) -> Callable[[], None]:
    """Hold the lock of ``folder`` until what is returned is called; on Windows there is none.

    Raises:
        OSError: the file cannot be written.
    """
    if sys.platform == "win32":
        return lambda: None
    import fcntl

    # Locked under another name, since another run must not find the lock free.
    beside = folder / f"{_LOCK}-{os.getpid()}"
    number = os.open(beside, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    fcntl.flock(number, fcntl.LOCK_EX)
    beside.rename(folder / _LOCK)
    return lambda: os.close(number)


def remove_folders() -> None:
    """Remove the folders of this user's runs that are dead."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError):  # another run removes it as well, or it is not to be had
                    _remove_if_dead(Path(entry.path))


def _remove_if_dead(folder: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    number = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(number)


__all__ = ["PREFIX", "hold", "remove_folders"]
