"""Text files that people write by hand, in whatever editor, and name on command lines."""

from __future__ import annotations

import stat
from pathlib import Path


class TextFileError(ValueError):
    """A file that holds no text; the message names it, the line where there is one, and what is wrong."""


def text_of(path: Path) -> str:
    """Return the text in ``path``: UTF-8, with or without a byte order mark, lines that end as on any system.

    Raises:
        TextFileError: it cannot be read, is no regular file, is not UTF-8, or holds a zero byte.
    """
    try:
        # A FIFO would be waited for.
        if not stat.S_ISREG(path.stat().st_mode):
            raise TextFileError(f"cannot read {path}: it is no regular file")
        data = path.read_bytes()
    except OSError as error:
        raise TextFileError(f"cannot read {path}: {error.strerror}") from error
    if b"\0" in data:
        raise TextFileError(f"{_at(path, data, data.index(0))}: a zero byte: save the file as UTF-8 text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _at(path, data, error.start)
        raise TextFileError(
            f"{place}: {data[error.start : error.end]!r} is not UTF-8: save the file as UTF-8"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _at(path: Path, data: bytes, place: int) -> str:
    before = data[:place].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = before.count(b"\n") + 1
    return f"{path}:{lines}"


__all__ = ["TextFileError", "text_of"]
