"""Folders that artifacts may be loaded from: those that nobody else can write to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pytest_regional import _private_folders
from pytest_regional._private_folders import NotPrivateError
from pytest_regional.reference.caching.errors import NotAFileError, UnsafeFolderError

_WHY = "Artifacts are pickles: whoever can write one there can run code here."


def require_private(folder: Path) -> None:
    """Make ``folder`` if it is missing, for its owner alone, and refuse it if somebody else could write to it.

    Somebody else: everybody; a group, unless that is the user's own; an owner who is neither this user nor root. A
    folder further up that somebody else owns or can write to is refused as well, because ``folder`` could be exchanged
    there, unless it has the sticky bit (as the system's folder for temporary files has).

    Raises:
        UnsafeFolderError: with the command that mends it.
        NotAFileError: something on the way to it is no folder.
        OSError: it cannot be made.
    """
    try:
        _private_folders.make_folder(folder)
    except NotADirectoryError as error:
        what = error.filename or folder
        raise NotAFileError(f"{what} is in use, but is no folder. Delete it, or choose another folder.") from error
    with _unsafe():
        _private_folders.private_folder(folder)


def require_own_file(path: Path, found: os.stat_result) -> None:
    """Refuse a file that another user owns or can write to: it may be older than the folder's safety.

    Raises:
        UnsafeFolderError: with what to do.
    """
    with _unsafe():
        _private_folders.require_own(path, found)


@contextlib.contextmanager
def _unsafe() -> Iterator[None]:
    try:
        yield
    except NotPrivateError as error:
        raise UnsafeFolderError(f"{error.fault}. {_WHY} {error.remedy}") from None
