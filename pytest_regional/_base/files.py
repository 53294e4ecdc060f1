"""Files: reading what people name or edit, writing whole files and JSON, folders that only their owner can write."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_regional._base.errors import RegionalError, RegionalValueError


def bytes_of(path: Path, most: int = -1) -> bytes:
    """Return what the regular file ``path`` holds, ``most`` bytes of it at most; nothing is waited for.

    Raises:
        OSError: it cannot be read, or is a directory, a pipe or a device.
    """
    # A FIFO is opened without waiting for a writer, to see that it is one.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


#: How the name of a file ends that is being written.
_TEMPORARY = ".regional-tmp"


def write_whole(path: Path, data: bytes, *, scratch: Path | None = None, mode: int = 0o666, sync: bool = False) -> None:
    """Write ``data`` to ``path`` in one step: a reader sees the old file or all of the new one, also after a crash.

    The bytes go to a temporary file, which is renamed. A killed writer leaves it, for :func:`remove_abandoned`.

    Args:
        path: in an existing directory.
        data: the complete content.
        scratch: an existing directory of the same file system for the temporary file; by default that of ``path``.
        mode: permissions, less the umask.
        sync: flush the bytes to the disk first, so that after a crash of the machine, too, one of the two is there.

    Raises:
        OSError: no space, no permission; nothing has changed.
    """
    with _temporary(scratch or path.parent, mode) as (descriptor, temporary):
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if sync:
            os.fsync(descriptor)
        os.replace(temporary, path)


@contextlib.contextmanager
def _temporary(folder: Path, mode: int) -> Iterator[tuple[int, Path]]:
    """Yield a locked new file and its name; it is deleted afterwards unless it was renamed."""
    while True:
        temporary = folder / f"{secrets.token_hex(8)}{_TEMPORARY}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        _lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            break
        # A writer that came between open and lock considered the file abandoned.
        os.close(descriptor)
    try:
        yield descriptor, temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
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
    removed = 0
    for path in folder.glob(f"*{_TEMPORARY}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _lock(descriptor, wait=False):
                    os.unlink(path)
                    removed += 1
            finally:
                os.close(descriptor)
    return removed


def text_of(path: Path) -> str:
    """Return the text in ``path``: UTF-8, with or without a byte order mark, lines that end as on any system.

    Raises:
        RegionalValueError: it cannot be read, is no regular file, is not UTF-8, or holds a zero byte.
    """
    try:
        data = bytes_of(path)
    except OSError as error:
        raise RegionalValueError(f"cannot read {path}: {error.strerror}") from error
    if b"\0" in data:
        raise RegionalValueError(f"{_at(path, data, data.index(0))}: a zero byte: save the file as UTF-8 text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _at(path, data, error.start)
        raise RegionalValueError(
            f"{place}: {data[error.start : error.end]!r} is not UTF-8: save the file as UTF-8"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _at(path: Path, data: bytes, place: int) -> str:
    before = data[:place].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = before.count(b"\n") + 1
    return f"{path}:{lines}"


#: What stands for infinity.
LARGEST = 1e300


def dumps(data: Any, **options: Any) -> str:
    """Return ``data`` as JSON; NaN is written as null, infinity as 1e300, with its sign.

    Args:
        data: plain data.
        options: of :func:`json.dumps`.

    Raises:
        TypeError: something else than plain data is in it.
    """
    try:
        return json.dumps(data, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(data), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else max(-LARGEST, min(value, LARGEST)) if math.isinf(value) else value
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value


_NOT_REGULAR = (errno.ELOOP, errno.ENXIO, errno.ENODEV)  # a link where none is followed, a socket, a device


class NotPrivateError(RegionalError):
    """Somebody else could have written what is about to be read.

    Attributes:
        fault: what is wrong, a sentence without its end.
        remedy: what to do, a sentence.
    """

    def __init__(self, fault: str, remedy: str) -> None:
        super().__init__(f"{fault}. {remedy}")
        self.fault = fault
        self.remedy = remedy


def make_folder(folder: Path) -> None:
    """Make ``folder`` and what is missing above it, for their owner alone.

    Raises:
        NotADirectoryError: something on the way is no folder.
        OSError: no permission, no space.
    """
    if folder.is_dir():
        return
    try:
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error


def private_folder(folder: str | os.PathLike[str]) -> str:
    """Return where ``folder`` is, links followed, which is a private folder.

    Raises:
        NotPrivateError: somebody else could write to it, or exchange it.
        OSError: it is not there.
    """
    place = os.path.realpath(folder)
    above, found = os.sep, os.lstat(os.sep)
    # From the top, so that what has been looked at is settled when what is in it is looked at.
    for name in filter(None, place.split(os.sep)):
        _require_settled(place, above, found)
        above = os.path.join(above, name)
        found = os.lstat(above)
    require_own(place, found)
    return place


def private_tree(folder: str | os.PathLike[str]) -> str:
    """Return where ``folder`` is, as :func:`private_folder`, with nothing in it that somebody else can have written.

    Raises:
        NotPrivateError: something in it is somebody else's, or neither a file nor a folder.
        OSError: it is not there.
    """
    place = private_folder(folder)
    _require_own_below(place)
    return place


def _require_own_below(folder: str) -> None:
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process of ours was done with it
            found = entry.stat(follow_symlinks=False)
            _require_kind(entry.path, stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))
            require_own(entry.path, found)
            if stat.S_ISDIR(found.st_mode):
                _require_own_below(entry.path)


def open_private(path: str) -> int:
    """Open the regular file ``path`` for reading and return its descriptor; no link is followed, no pipe waited for.

    Raises:
        NotPrivateError: somebody else owns it or can write to it, or it is something else.
        FileNotFoundError: there is none.
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        _require_kind(path, error.errno not in _NOT_REGULAR)
        raise
    try:
        found = os.fstat(descriptor)
        _require_kind(path, stat.S_ISREG(found.st_mode))
        require_own(path, found)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_own(path: str | os.PathLike[str], found: os.stat_result) -> None:
    """Refuse a file or folder that somebody else owns or can write to.

    Raises:
        NotPrivateError: with the command that mends it.
    """
    _require_kind(path, not stat.S_ISLNK(found.st_mode))
    if not hasattr(os, "geteuid"):
        return  # Windows, where a file's mode says nothing of who may write to it
    if not _trusted(found.st_uid):
        raise NotPrivateError(
            f"{path} is owned by user {found.st_uid}, and this is user {os.geteuid()}",
            f"Choose a folder of your own, or run: chown -R {os.geteuid()} {path}",
        )
    if found.st_mode & stat.S_IWOTH:
        raise NotPrivateError(f"{path} can be written to by everybody", f"Run: chmod go-w {path}")
    if found.st_mode & stat.S_IWGRP and not _own_group(found.st_gid):
        raise NotPrivateError(f"{path} can be written to by its group", f"Run: chmod g-w {path}")


def _require_settled(place: str, above: str, found: os.stat_result) -> None:
    """Refuse a folder above ``place`` in which somebody else could exchange what leads to it."""
    _require_kind(above, stat.S_ISDIR(found.st_mode))
    if not _trusted(found.st_uid):
        raise NotPrivateError(
            f"{place} can be exchanged by user {found.st_uid}, who owns {above}",
            "Choose a folder below one of your own",
        )
    if found.st_mode & stat.S_ISVTX:
        return  # There only the owner of what is in it can exchange that.
    if found.st_mode & stat.S_IWOTH:
        raise NotPrivateError(
            f"{place} can be exchanged by everybody, who can write to {above}", f"Run: chmod o-w {above}"
        )
    if found.st_mode & stat.S_IWGRP and not _own_group(found.st_gid):
        raise NotPrivateError(
            f"{place} can be exchanged by a group, which can write to {above}", f"Run: chmod g-w {above}"
        )


def _require_kind(path: str | os.PathLike[str], right: bool) -> None:
    if not right:
        raise NotPrivateError(f"{path} is a link, a pipe, or something else that was not put there by us", "Delete it")


def _trusted(user: int) -> bool:
    return user in (os.geteuid(), 0)


def _own_group(group: int) -> bool:
    """Say whether ``group`` is the private group that some systems give every user."""
    import grp
    import pwd

    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return group == user.pw_gid and entry.gr_name == user.pw_name and set(entry.gr_mem) <= {user.pw_name}
