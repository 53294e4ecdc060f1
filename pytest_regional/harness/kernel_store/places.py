"""Where the store is: a folder of the user's own, or none."""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path

#: What names the store's folder to every process of a run: a path, or ``off``.
VARIABLE = "PYTEST_REGIONAL_KERNEL_STORE"
OFF = "off"


class StoreError(ValueError):
    """A folder that cannot hold the store; the message says why, and what to do."""


def chosen_folder() -> Path | None:
    """Return the folder of the store that the environment names, or the user's own; ``None`` for no store."""
    named = os.environ.get(VARIABLE, "")
    if named == OFF:
        return None
    return _checked(named or str(default_folder()), explicit=bool(named))


def default_folder() -> Path:
    """Return the user's own (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    # https://specifications.freedesktop.org/basedir-spec: a relative path is to be ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else "~/.cache").expanduser() / "pytest-regional" / "kernels"


@functools.cache
def _checked(folder: str, explicit: bool) -> Path | None:
    try:
        return prepared(Path(folder))
    except StoreError:
        if explicit:
            raise
        # The user's own folder does not do (a home that cannot be written, as in some containers): compile everything.
        return None


def prepared(folder: Path) -> Path:
    """Make ``folder``, for its owner alone, and check that nobody else can write to it: what is there gets executed.

    Raises:
        StoreError: it cannot be made or written, or is not the user's alone.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except (OSError, RuntimeError) as error:
        raise StoreError(f"{folder} cannot be made: {error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(f"{folder} cannot be written to")
    if found.st_uid != os.geteuid():
        raise StoreError(f"{folder} is owned by user {found.st_uid}, this is user {os.geteuid()}: name another folder")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreError(f"{folder} can be written to by others, and what is in it gets executed: chmod go-w {folder}")
    return folder


__all__ = ["OFF", "VARIABLE", "StoreError", "chosen_folder", "default_folder", "prepared"]
