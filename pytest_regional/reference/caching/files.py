"""Artifacts as files: written atomically, read only from private directories."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from pytest_regional._base import private_folders
from pytest_regional._base.private_folders import NotPrivateError
from pytest_regional.reference.caching.container import (
    ArtifactError,
    ArtifactNotFoundError,
    NotAFileError,
    seal,
    unseal,
)

_WHY = "Artifacts are pickles: whoever can write one there can run code here."


def require_private(folder: Path) -> None:
    """Make ``folder`` if it is missing, for its owner only, and raise if another user could write to it.

    Another user is everybody; a group, except for the user's own; an owner who is neither this user nor root. A parent
    directory that another user owns or can write to is refused as well, because ``folder`` could be replaced there,
    unless it has the sticky bit (like the system's temporary directory).

    Raises:
        ArtifactError: with the command that fixes it.
        NotAFileError: part of the path is not a directory.
        OSError: it cannot be made.
    """
    try:
        private_folders.make_folder(folder)
    except NotADirectoryError as error:
        what = error.filename or folder
        raise NotAFileError(f"{what} is not a directory. Delete it, or choose another directory.") from error
    with _unsafe():
        private_folders.private_folder(folder)


def require_own_file(path: Path, found: os.stat_result) -> None:
    """Raise for a file that another user owns or can write to: it may be older than the directory's permissions.

    Raises:
        ArtifactError: with what to do.
    """
    with _unsafe():
        private_folders.require_own(path, found)


@contextlib.contextmanager
def _unsafe() -> Iterator[None]:
    try:
        yield
    except NotPrivateError as error:
        raise ArtifactError(f"{error.fault}. {_WHY} {error.remedy}") from None


_TEMPORARY = ".regional-tmp"


def write_artifact(path: Path, payload: bytes, kind: str) -> None:
    """Seal ``payload`` and write it to ``path`` atomically, with missing directories.

    Raises:
        NotAFileError: ``path`` is a directory or a device.
        ArtifactError: others can write to the directory.
        OSError: no space, no permission; an existing file is unchanged.
    """
    if path.exists() and not path.is_file():
        raise NotAFileError(f"{path} is {_what(path.stat().st_mode)}. Name a file.")
    require_private(path.parent)
    write_atomically(path, seal(payload, kind=kind))


def read_artifact(path: Path, kind: str) -> bytes:
    """Return the payload of the artifact at ``path``.

    Raises:
        ArtifactError: its subclass tells what is wrong, the message also which file and what to do.
        OSError: the file cannot be read.
    """
    return unseal(read_private(path), kind=kind, where=str(path))


def read_private(path: Path) -> bytes:
    """Return the bytes of a file that only this user or root can have written.

    Raises:
        ArtifactNotFoundError: it does not exist.
        NotAFileError: it is a directory or a device.
        ArtifactError: others can write to the directory, or could when the file was written.
        OSError: the file cannot be read.
    """
    path = Path(os.path.realpath(path))
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactNotFoundError(f"{path} does not exist. Save it first, or check the path.") from error
    # Before opening: opening a pipe would wait for a writer.
    if not stat.S_ISREG(mode):
        raise NotAFileError(f"{path} is {_what(mode)}, not the file of an artifact. Name the file.")
    require_private(path.parent)
    with path.open("rb") as file:
        require_own_file(path, os.fstat(file.fileno()))
        return file.read()


def _what(mode: int) -> str:
    return "a directory" if stat.S_ISDIR(mode) else "not a regular file"


def write_atomically(path: Path, data: bytes, *, scratch: Path | None = None) -> None:
    """Write ``data`` to ``path`` atomically: a reader sees the old file or the complete new one.

    The bytes are written to a temporary file, flushed to disk, and renamed. A killed writer leaves the temporary file,
    which the next writer in the same directory removes. (After a crash of the machine the old file may be back.)

    Args:
        path: in an existing directory.
        data: the complete content.
        scratch: an existing directory on the same file system for the temporary file; by default that of ``path``.

    Raises:
        OSError: no space, no permission; nothing has changed.
    """
    folder = scratch or path.parent
    remove_abandoned(folder)
    with _temporary(folder) as (descriptor, temporary):
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
        os.replace(temporary, path)


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield a locked new file and its name; it is deleted afterwards unless it was renamed."""
    descriptor, temporary = _locked_file(folder)
    try:
        yield descriptor, temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        os.close(descriptor)


def _locked_file(folder: Path) -> tuple[int, Path]:
    while True:
        temporary = folder / f"{secrets.token_hex(8)}{_TEMPORARY}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        _lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        # A writer that came between open and lock considered the file abandoned.
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool = True) -> bool:
    """Lock the file until the process ends; return whether that succeeded."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Held by a running writer, or a file system without locks: then no file there is considered abandoned.
        return False
    return True


def remove_abandoned(folder: Path) -> int:
    """Remove the temporary files of killed writers, and return how many.

    A lock, unlike a process id, also works across containers and machines.
    """
    return sum(_remove_if_abandoned(path) for path in folder.glob(f"*{_TEMPORARY}"))


def _remove_if_abandoned(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if not _lock(descriptor, wait=False):
            return False
        os.unlink(path)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
