"""Reading files that people name or edit by hand, and may be anything; writing whole files, and JSON."""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from pytest_regional._base.errors import RegionalError


class NotAFileError(RegionalError, OSError):
    """What is to be read is a directory, a pipe or a device."""


def bytes_of(path: Path, most: int = -1) -> bytes:
    """Return what the regular file ``path`` holds, ``most`` bytes of it at most; nothing is waited for.

    Raises:
        NotAFileError: it is no regular file.
        OSError: it cannot be read.
    """
    # A FIFO is opened without waiting for a writer, to see that it is one.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotAFileError(0, "it is no regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` in one step: a reader sees the old file or all of the new one, also after a crash.

    Raises:
        OSError: no space, no permission; the old file, if any, is still there.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with aside.open("xb") as file:
            file.write(data)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


class TextFileError(RegionalError, ValueError):
    """A file that holds no text; the message names it, the line where there is one, and what is wrong."""


def text_of(path: Path) -> str:
    """Return the text in ``path``: UTF-8, with or without a byte order mark, lines that end as on any system.

    Raises:
        TextFileError: it cannot be read, is no regular file, is not UTF-8, or holds a zero byte.
    """
    try:
        data = bytes_of(path)
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
