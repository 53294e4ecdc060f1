"""Folders that artifacts may be loaded from: those that nobody else can write to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pytest_regional.reference.caching.errors import NotAFileError, UnsafeFolderError

_WHY = "Artifacts are pickles: whoever can write one there can run code here."


def require_private(folder: Path) -> None:
    """Make ``folder`` if it is missing, for its owner alone, and refuse it if somebody else could write to it.

    Somebody else: everybody; the folder's group, unless that is the user's own; an owner who is neither this user nor
    root. A folder further up that everybody can write to is refused as well, because ``folder`` could be exchanged
    there, unless it has the sticky bit (as the system's folder for temporary files has).

    Raises:
        UnsafeFolderError: with the command that mends it.
        NotAFileError: something on the way to it is no folder.
        OSError: it cannot be made.
    """
    make_private(folder)
    folder = Path(os.path.realpath(folder))
    found = folder.stat()
    _require_owner(folder, found)
    if found.st_mode & stat.S_IWOTH:
        raise UnsafeFolderError(f"{folder} can be written to by everybody. {_WHY} Run: chmod go-w {folder}")
    if found.st_mode & stat.S_IWGRP and not _own_group(found.st_gid):
        raise UnsafeFolderError(f"{folder} can be written to by its group. {_WHY} Run: chmod g-w {folder}")
    for above in folder.parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise UnsafeFolderError(
                f"{folder} can be exchanged by everybody, who can write to {above}. {_WHY} Run: chmod o-w {above}"
            )


def require_own_file(path: Path, found: os.stat_result) -> None:
    """Refuse a file that another user owns or that everybody can write to: it may be older than the folder's safety.

    Raises:
        UnsafeFolderError: with what to do.
    """
    _require_owner(path, found)
    if found.st_mode & stat.S_IWOTH:
        raise UnsafeFolderError(f"{path} can be written to by everybody. {_WHY} Delete it and compile again.")


def make_private(folder: Path) -> None:
    """Make ``folder`` and what is missing above it, for their owner alone.

    Raises:
        NotAFileError: something on the way is no folder.
        OSError: no permission, no space.
    """
    if folder.is_dir():
        return
    try:
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotAFileError(f"{folder} is in use, but is no folder. Delete it, or choose another folder.") from error


def _require_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeFolderError(
            f"{path} is owned by user {found.st_uid}, and this is user {os.geteuid()}. {_WHY} "
            f"Choose a folder of your own (TORCHINDUCTOR_CACHE_DIR), or run: chown -R {os.geteuid()} {path}"
        )


def _own_group(group: int) -> bool:
    """Say whether ``group`` is the private group that some systems give every user."""
    import grp
    import pwd

    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return group == user.pw_gid and entry.gr_name == user.pw_name and set(entry.gr_mem) <= {user.pw_name}
