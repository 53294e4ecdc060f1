"""JSON documents that anyone may have edited: read within limits, and decoded into declared types.

``msgspec`` checks types; NaN, infinities, integers of many digits, deep nesting and duplicate fields are refused here.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.files import bytes_of

#: Bytes of the largest file that is read by default; reports may be larger.
LARGEST = 16 * 2**20

#: Digits of the longest integer, and how deep lists and objects are nested at most: no document of ours needs more.
_DIGITS, _DEPTH = 20, 40

#: Characters of the longest problem in a message, which may quote a value.
_MESSAGE = 300

T = TypeVar("T")


class DocumentError(RegionalValueError):
    """A document that is not what it has to be; the message names the file, the place in it, and what is wrong."""


def read(path: Path, kind: type[T], what: str, *, remedy: str = "", most: int = LARGEST) -> T:
    """Return the document in the file ``path``.

    Args:
        path: the file.
        kind: the declared type.
        what: what the file should hold, as in "no finding", for messages.
        remedy: a sentence that ends the message.
        most: bytes of the largest file that is read.

    Raises:
        DocumentError: it cannot be read, or holds something else.
    """
    end = f". {remedy}" if remedy else ""
    try:
        data = loads(_text(path, most))
    except DocumentError as error:
        raise DocumentError(f"{path} {error}{end}") from error
    try:
        return decoded(data, kind)
    except DocumentError as error:
        raise DocumentError(f"{path} is no {what}: {error}{end}") from error


def _text(path: Path, most: int) -> str:
    try:
        data = bytes_of(path, most + 1)
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}") from error
    if len(data) > most:
        raise DocumentError(f"is larger than {most // 2**20} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError(f"is not JSON: byte {error.start} is not UTF-8") from error


def loads(text: str) -> Any:
    """Return what JSON ``text`` says; half a surrogate pair, which no file can hold, becomes ``\ufffd``.

    Raises:
        DocumentError: the text is not JSON, is nested too deeply, or holds what no document of ours does: NaN,
            infinities, integers of many digits, one field twice.
    """
    if not text.strip():
        raise DocumentError("is empty: the run that should have written it ended before")
    try:
        data = json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        raise DocumentError(f"is not JSON: {error}") from error
    except RecursionError:
        raise DocumentError("is nested too deeply") from None
    level = [data]
    for _ in range(_DEPTH):
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (list, dict)))
        level = [child for one in inside for child in one]
    if level:
        raise DocumentError("is nested too deeply")
    return _without_halves(data) if _HALF.search(text) else data


def decoded(data: Any, kind: type[T], place: str = "") -> T:
    """Return plain data, which stands at ``place`` of a document, as ``kind``.

    Raises:
        DocumentError: it is something else; names the place.
    """
    import msgspec  # it takes as long as half of the start of a run

    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        problem, _, below = str(error).partition(" - at `$")
        where = f"{place}{below.rstrip('`')}".lstrip(".") or "the document"
        said = problem if len(problem) <= _MESSAGE else f"{problem[:_MESSAGE]}..."
        raise DocumentError(f"{where}: {said}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DocumentError(f"has the field {reprlib.repr(twice)} twice")
    return made


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise DocumentError(f"holds an integer of {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise DocumentError("holds a number that is not finite")
    return value


def _constant(text: str) -> NoReturn:
    raise DocumentError(f"holds {text}, which is not a number in JSON")


_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def _without_halves(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_halves(one) for one in value]
    if isinstance(value, dict):
        return {_without_halves(name): _without_halves(one) for name, one in value.items()}
    return value


__all__ = ["LARGEST", "DocumentError", "decoded", "loads", "read"]
