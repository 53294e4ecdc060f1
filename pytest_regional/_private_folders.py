"""Folders for this user alone: what is loaded from them as code must come from nobody else."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


class ForeignFolderError(OSError):
    """A folder for what is compiled, and then loaded as code, belongs to somebody else."""


def make_private(folder: Path) -> None:
    """Make ``folder``, and what is missing above it, for this user alone.

    Raises:
        ForeignFolderError: what is there is another user's, or a link.
        OSError: it cannot be made.
    """
    missing = [folder]
    while not os.path.lexists(missing[-1].parent):
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # it was there, or another worker of the run was faster
            path.mkdir(mode=0o700)
        _require_own(path)


def _require_own(folder: Path) -> None:
    found = folder.lstat()
    own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    if not stat.S_ISDIR(found.st_mode) or not own:
        raise ForeignFolderError(
            f"{folder} is no folder of this user's any more; compiled code was to be loaded from it"
        )


def working_folder() -> Path | None:
    """Return the folder in which this process works; ``None`` where it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return None


__all__ = ["ForeignFolderError", "make_private", "working_folder"]
