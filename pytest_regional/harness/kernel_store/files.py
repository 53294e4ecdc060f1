"""Kernels as files: written whole or not at all, checked when they are read, the longest unused given up first."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

#: How many bytes are kept between two runs.
LIMIT = 2 * 2**30
_TEMPORARY = ".tmp-"
#: Seconds after which a temporary file is that of a process which was killed.
_ABANDONED = 3600.0
_DIGEST = hashlib.sha256().digest_size


class KernelFiles:
    """The files of one store: below ``folder`` each has its key for a name, and begins with a digest of the rest.

    Attributes:
        folder: the store's.
        taken: how many kernels this object found.
        made: how many it kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken = 0
        self.made = 0

    def take(self, key: str, target: Path) -> bool:
        """Write the kernel to ``target``, if it is there and whole; a damaged one is deleted."""
        content = self.read(key)
        if content is None:
            return False
        # A file of its own, no link: a test may damage what is in its cache folder.
        _write(target, content, mode=0o755)
        self.taken += 1
        return True

    def put(self, key: str, made: Path) -> None:
        """Keep the file that a compiler made, if it made one."""
        with contextlib.suppress(OSError):
            self.keep(key, made.read_bytes())

    def keep(self, key: str, content: bytes) -> None:
        """Keep ``content``. Nothing is kept where that fails, and nothing lost: the disk may be full."""
        with contextlib.suppress(OSError):
            self.write(key, content)
            self.made += 1

    def read(self, key: str) -> bytes | None:
        """Return what is kept under ``key``, and note that it was used."""
        path = self._path(key)
        try:
            stored = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        digest, content = stored[:_DIGEST], stored[_DIGEST:]
        if hashlib.sha256(content).digest() == digest:
            return content
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def write(self, key: str, content: bytes) -> None:
        """Keep ``content`` under ``key``.

        Raises:
            OSError: no space, no permission; what was there is there still.
        """
        path = self._path(key)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _write(path, hashlib.sha256(content).digest() + content, mode=0o600)

    def prune(self, limit: int = LIMIT) -> int:
        """Delete the longest unused until ``limit`` bytes are left, and what killed processes left; return how many.

        Other processes may read and write meanwhile: a file that is gone is a kernel that nobody kept.
        """
        found, deleted = sorted(self._files(), reverse=True), 0
        total = 0
        for used, size, path in found:
            total += size
            abandoned = path.name.startswith(_TEMPORARY) and time.time() - used > _ABANDONED
            if total > limit or abandoned:
                with contextlib.suppress(OSError):
                    path.unlink()
                    deleted += 1
        return deleted

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        for path in self.folder.glob("??/*"):
            with contextlib.suppress(OSError):
                found = path.stat()
                yield found.st_mtime, found.st_size, path

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key[2:]


def _write(path: Path, content: bytes, mode: int) -> None:
    temporary = path.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


__all__ = ["LIMIT", "KernelFiles"]
