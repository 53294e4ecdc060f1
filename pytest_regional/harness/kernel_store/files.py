"""Kernels as files: written atomically, checked when read, least recently used deleted first.

Files that another user can have written are not read: each access checks the directories and follows no link.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_regional._base.errors import RegionalValueError, RegionalWarning
from pytest_regional._base.files import (
    NotPrivateError,
    make_folder,
    open_private,
    private_folder,
    private_tree,
    remove_abandoned,
    require_own,
    write_whole,
)

#: Names the store's directory for every process of a run: a path, or ``off``.
VARIABLE = "PYTEST_REGIONAL_KERNEL_STORE"
OFF = "off"

#: Directories in the store that compilers and PyTorch search themselves, with Inductor's names.
HEADERS = "precompiled_headers"
PROCESSOR = "processor"

_CLAIMS = "claims"
#: Seconds after which a process builds a kernel that another one has claimed: it may have been stopped.
CLAIM_SECONDS = 120.0
#: The ending of what GCC makes of a header.
PRECOMPILED = ".gch"


class KernelStoreWarning(RegionalWarning):
    """Something in the kernel store is not used, because another user can have written it; it is made again."""


def chosen_folder() -> Path | None:
    """Return the store's directory from the environment, or the user's default; ``None`` for no store.

    The default is in ``XDG_CACHE_HOME``, else in ``~/.cache``.
    """
    named = os.environ.get(VARIABLE, "")
    if named == OFF:
        return None
    if named:
        return _checked_place(named, explicit=True)
    # https://specifications.freedesktop.org/basedir-spec: ignore a relative path.
    base = os.environ.get("XDG_CACHE_HOME", "")
    default = Path(base if os.path.isabs(base) else "~/.cache").expanduser() / "pytest-regional" / "kernels"
    return _checked_place(str(default), explicit=False)


@functools.cache
def _checked_place(folder: str, explicit: bool) -> Path | None:
    try:
        return prepared(Path(folder))
    except RegionalValueError:
        if explicit:
            raise
        # The default directory is unusable (an unwritable home, as in some containers): compile everything.
        return None


def prepared(folder: Path) -> Path:
    """Make ``folder``, for its owner only, and check that no other user can write to it: its contents are executed.

    The check decides whether there is a store. Each read or write checks again.
    """
    try:
        make_folder(folder)
        private_folder(folder)
    except (OSError, RuntimeError) as error:
        raise RegionalValueError(f"{folder} cannot be made: {error}") from error
    except NotPrivateError as error:
        raise RegionalValueError(f"{error.fault}, and its contents are executed. {error.remedy}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RegionalValueError(f"{folder} cannot be written to")
    return folder


def folder_for_compilers(name: str, *bases: Path) -> Path | None:
    """Return the directory ``name`` for files that compilers search themselves: in the first usable one of ``bases``.

    They are not read through :class:`.files.KernelFiles`, so all of them must be this user's, and the directory is made
    inaccessible to others.

    Warns:
        KernelStoreWarning: another user can have written to each of them, so there is no such directory (``None``).
    """
    faults = []
    for base in bases:
        try:
            make_folder(base / name)
            folder = Path(private_tree(base / name))
            folder.chmod(0o700)  # PyTorch makes files there with the umask
        except (NotPrivateError, OSError) as error:
            faults.append(str(error))
        else:
            return folder
    warn_once(f"compiles take longer, as there is no directory for {name.replace('_', ' ')}: {'; '.join(faults)}")
    return None


@functools.cache
def warn_once(message: str) -> None:
    """Warn with ``message`` once in this process."""
    warnings.warn(message, KernelStoreWarning, stacklevel=3)


#: Bytes kept between two runs.
LIMIT = 2 * 2**30
_DIGEST = hashlib.sha256().digest_size
# Our names of directories and files in the store: nothing else is deleted.
_KERNELS = re.compile(r"[0-9a-f]{2}"), re.compile(r"[0-9a-f]{62}")
# Precompiled headers: the translations, not the header files themselves, which a running compile includes.
_PRECOMPILED = re.compile(HEADERS), re.compile(r"[0-9a-z]+\.h(\.[0-9a-f]{16})?\.[gp]ch")


_unread: list[None] = []


@contextlib.contextmanager
def nothing_read() -> Iterator[None]:
    """Have compilers run as without a store while the context lasts, in all threads; what they make is stored."""
    _unread.append(None)
    try:
        yield
    finally:
        _unread.pop()


class KernelFiles:
    """The files of one store, in ``folder``: each is named after its key and starts with a digest of key and content.

    Attributes:
        folder: the store's directory.
        taken: how many kernels this object found.
        made: how many kernels it stored.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken = 0
        self.made = 0

    def take(self, key: str, target: Path) -> bool:
        """Write the kernel to ``target`` if it is stored and intact; a damaged one is deleted."""
        try:
            content = self.read(key)
            if content is not None and target.suffix == PRECOMPILED:
                content = zlib.decompress(content)
        except MemoryError:  # a header is large, and a test may have a limit
            return False
        if content is None:
            return False
        # A copy, not a link: a test may damage files in its cache directory.
        write_whole(target, content, mode=0o755)
        self.taken += 1
        return True

    @contextlib.contextmanager
    def claimed(self, key: str) -> Iterator[None]:
        """Have no other process make the kernel ``key`` meanwhile, if it claims it, too.

        Waits for one that has claimed it, and then it may be there; of a process that dies, the claim ends. Where the
        store cannot be written to, and after :data:`CLAIM_SECONDS`, nothing is claimed.
        """
        with contextlib.ExitStack() as stack:
            # Kernels share 256 locks: one file for each would have to be deleted, and others may wait for it.
            with contextlib.suppress(NotPrivateError, OSError, Timeout):
                folder = Path(private_folder(self.folder)) / _CLAIMS
                make_folder(folder)
                private_folder(folder)
                # One object for a file: a harness inside of another one claims again what this thread has claimed.
                lock = FileLock(folder / key[:2], timeout=CLAIM_SECONDS, mode=0o600, is_singleton=True)
                stack.enter_context(lock)
            yield

    def put(self, key: str, made: Path) -> None:
        """Store the file that a compiler made, if it made one."""
        with contextlib.suppress(OSError, MemoryError):
            content = made.read_bytes()
            # 150 MB become 26, in a second; half a second brings them back.
            self.keep(key, zlib.compress(content, 1) if made.suffix == PRECOMPILED else content)

    def keep(self, key: str, content: bytes) -> None:
        """Store ``content``; a failure, such as a full disk, is only a warning."""
        try:
            self.write(key, content)
        except NotPrivateError as error:
            warn_once(f"compiled kernels are not kept: {error}")
        except OSError:
            return
        else:
            self.made += 1

    def read(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, and mark it as used; ``None`` if missing or damaged.

        Warns:
            KernelStoreWarning: another user can have written it; once for each reason.
        """
        if _unread:
            return None
        try:
            return _checked(key, os.path.join(self._folder_of(key), key[2:]))
        except NotPrivateError as error:
            warn_once(f"a compiled kernel is not used, and is compiled again: {error}")
        except OSError:
            pass
        return None

    def write(self, key: str, content: bytes) -> None:
        """Store ``content`` under ``key``.

        Raises:
            NotPrivateError: another user can write to the store.
            OSError: no space, no permission; an existing entry is unchanged.
        """
        path = Path(self._folder_of(key, make=True), key[2:])
        write_whole(path, _digest(key, content) + content, mode=0o600)

    def prune(self, limit: int = LIMIT) -> int:
        """Delete files of killed processes, and least recently used ones above ``limit`` bytes; return how many.

        Only files with names of kernels or of precompiled headers. Other processes may read and write meanwhile: a
        deleted file is a kernel that is not stored. A store that others can write to is unchanged.
        """
        total = deleted = 0
        folders = set()
        for _, size, place, name in sorted(self._files(), reverse=True):
            total += size
            folders.add(place)
            if total > limit:
                with contextlib.suppress(OSError, NotPrivateError):
                    require_own(place, os.lstat(place))
                    os.unlink(os.path.join(place, name))
                    deleted += 1
        for place in folders:
            with contextlib.suppress(OSError, NotPrivateError):
                require_own(place, os.lstat(place))
                deleted += remove_abandoned(Path(place))
        return deleted

    def _files(self) -> Iterator[tuple[float, int, str, str]]:
        with contextlib.suppress(OSError, NotPrivateError):
            place = private_folder(self.folder)
            for entry in os.scandir(place):
                for folders, files in (_KERNELS, _PRECOMPILED):
                    if folders.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                        for inside in os.scandir(entry.path):
                            if files.fullmatch(inside.name):
                                with contextlib.suppress(OSError):
                                    found = inside.stat(follow_symlinks=False)
                                    yield found.st_mtime, found.st_size, entry.path, inside.name

    def _folder_of(self, key: str, *, make: bool = False) -> str:
        """Return the directory of the entry ``key``, which is no link, and private."""
        inside = os.path.join(private_folder(self.folder), key[:2])
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(inside, 0o700)
        require_own(inside, os.lstat(inside))
        return inside


def _checked(key: str, path: str) -> bytes | None:
    """Return the content of the entry ``key`` in ``path``; an unusable one is deleted, so that it can be replaced."""
    try:
        with open(open_private(path), "rb") as file:
            stored = file.read()
            with contextlib.suppress(OSError):  # it is root's
                os.utime(file.fileno())
    except NotPrivateError:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    content = stored[_DIGEST:]
    if stored[:_DIGEST] == _digest(key, content):
        return content
    with contextlib.suppress(OSError):
        os.unlink(path)
    return None


def _digest(key: str, content: bytes) -> bytes:
    """Return the first bytes of an entry; they reveal damage and other users' entries, but not whose."""
    digest = hashlib.sha256(key.encode() + b"\0")
    digest.update(content)
    return digest.digest()
