"""JSON that somebody else may have written: read within limits, and asked for value by value, each of a stated type.

Nothing is converted and nothing is passed on unseen: a reader names the fields that there are, and what each may hold.
Every error names the place in the document, as in ``program.arguments[0].dtype``.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pytest_regional._errors import RegionalError
from pytest_regional._files import NotAFileError, bytes_of

#: Bytes of the largest file that is read; findings have thousands.
LARGEST = 16 * 2**20

#: Digits of the longest integer that is read; no field allows more.
_DIGITS = 20

T = TypeVar("T")


class MalformedError(RegionalError, ValueError):
    """A document, or a value in it, that is not what it has to be; the message is a predicate: "is no JSON"."""


def read(path: Path) -> Any:
    """Return what the JSON file ``path`` holds, without NaN, infinities, and fields that stand twice.

    Raises:
        MalformedError: it is no regular file, larger than ``LARGEST``, not UTF-8, or no such JSON.
        OSError: it cannot be opened.
    """
    return loads(_text(path))


def _text(path: Path) -> str:
    try:
        data = bytes_of(path, LARGEST + 1)
    except NotAFileError as error:
        raise MalformedError("is no regular file") from error
    if len(data) > LARGEST:
        raise MalformedError(f"is larger than {LARGEST // 2**20} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError(f"is no JSON: it is not UTF-8 ({error})") from error


def loads(text: str) -> Any:
    """Return what JSON ``text`` says.

    Raises:
        MalformedError: it is none, nested too deeply, or says what no document of ours does: NaN, infinities, integers
            of many digits, one field twice.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_mapping,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_constant,
        )
    except json.JSONDecodeError as error:
        raise MalformedError(f"is no JSON: {error}") from error
    except RecursionError:
        raise MalformedError("is nested too deeply") from None


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise MalformedError(f"has the field {_shown(next(name for name in names if names.count(name) > 1))} twice")
    return made


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise MalformedError(f"holds an integer of {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedError("holds a number that is not finite")
    return value


def _constant(text: str) -> NoReturn:
    raise MalformedError(f"holds {text}, which is no number of JSON's")


def _shown(value: Any) -> str:
    """Return ``value`` for a message: short, and without characters that a terminal obeys."""
    return reprlib.repr(value)


@dataclass(frozen=True)
class Field:
    """A value of a document, and where it stands; each method returns it as one type or raises :class:`MalformedError`.

    Attributes:
        value: plain data.
        place: such as ``arguments[0].dtype``; empty for the document itself.
    """

    value: Any
    place: str = ""

    def refuse(self, problem: str) -> NoReturn:
        """Raise the error that names this place."""
        raise MalformedError(f"{self.place}: {problem}" if self.place else problem)

    def fields(self, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Field]:
        """Return the fields of an object, which has all ``required`` ones, and no others but ``optional`` ones."""
        found = self.mapping()
        missing = [name for name in required if name not in found]
        if missing:
            self.refuse(f"the field {missing[0]!r} is missing")
        unknown = [name for name in found if name not in required and name not in optional]
        if unknown:
            self.refuse(f"there is no field {_shown(unknown[0])}; known: {', '.join((*required, *optional))}")
        return found

    def mapping(self, most: int = 1000) -> dict[str, Field]:
        """Return the fields of an object, whatever they are called."""
        if not isinstance(self.value, Mapping):
            self.refuse(f"{_shown(self.value)} is no object")
        if len(self.value) > most:
            self.refuse(f"{len(self.value)} fields, of which {most} are read at most")
        before = f"{self.place}." if self.place else ""
        return {
            name: Field(value, f"{before}{name if name.isidentifier() and len(name) < 80 else _shown(name)}")
            for name, value in self.value.items()
        }

    def items(self, most: int = 10_000) -> list[Field]:
        """Return the items of a list."""
        if not isinstance(self.value, list):
            self.refuse(f"{_shown(self.value)} is no list")
        if len(self.value) > most:
            self.refuse(f"{len(self.value)} items, of which {most} are read at most")
        return [Field(value, f"{self.place}[{index}]") for index, value in enumerate(self.value)]

    def integer(self, least: int, most: int) -> int:
        """Return an integer from ``least`` to ``most``; true and false are none."""
        if type(self.value) is not int:
            self.refuse(f"{_shown(self.value)} is no integer")
        if not least <= self.value <= most:
            self.refuse(f"{self.value} is not between {least} and {most}")
        return self.value

    def number(self) -> int | float:
        """Return a number that is finite; true and false are none."""
        if type(self.value) not in (int, float) or not math.isfinite(self.value):
            self.refuse(f"{_shown(self.value)} is no number")
        number: int | float = self.value
        return number

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            self.refuse(f"{_shown(self.value)} is neither true nor false")
        return self.value

    def text(self) -> str:
        """Return any text; half a surrogate pair, which no encoding has, becomes its escape."""
        if not isinstance(self.value, str):
            self.refuse(f"{_shown(self.value)} is no text")
        return self.value.encode("utf-8", "backslashreplace").decode("utf-8")

    def line(self, most: int = 200) -> str:
        """Return text of up to ``most`` characters that can all be printed."""
        text = self.text()
        if len(text) > most or not text.isprintable():
            self.refuse(f"{_shown(text)} is no line of up to {most} printable characters")
        return text

    def one_of(self, allowed: Collection[str]) -> str:
        """Return one of the texts ``allowed``."""
        if not isinstance(self.value, str) or self.value not in allowed:
            self.refuse(f"{_shown(self.value)} is none of {', '.join(map(repr, allowed))}")
        return self.value

    def or_none(self, read: Callable[[Field], T]) -> T | None:
        """Return None for null, and else what ``read`` makes of it."""
        return None if self.value is None else read(self)


__all__ = ["LARGEST", "Field", "MalformedError", "loads", "read"]
