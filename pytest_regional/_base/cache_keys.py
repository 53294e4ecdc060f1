"""The key of a cache of compiled graphs as named texts, and in which of them two keys differ.

Texts are the same in every process. Those of the keys of stored results are files next to the results, so that a miss
says in which entry its key differs from the nearest of them.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from pytest_regional._base.documents import DocumentError, read
from pytest_regional._base.files import dumps, write_whole
from pytest_regional._base.text import plural

KeyTexts = Mapping[str, str]
"""What a key is made of: a text by name, such as ``input 0, shape``."""


@dataclass(frozen=True)
class CacheKey:
    """The key of one Dynamo graph.

    Attributes:
        key: under which its result is stored; empty without one.
        refusal: why there is none.
        texts: what the key is made of, by name.
        ingredients: what the code of the graph depends on, whatever the key holds; the harness adds them.
    """

    key: str
    refusal: str = ""
    texts: KeyTexts = field(default_factory=dict)
    ingredients: KeyTexts = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """A text in which two keys differ; ``None`` where a key has none of that name."""

    name: str
    first: str | None
    second: str | None


def differences(first: KeyTexts, second: KeyTexts) -> list[Difference]:
    """Return the texts in which two keys differ."""
    names = dict.fromkeys((*first, *second))
    return [
        Difference(name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)
    ]


def in_words(found: Sequence[Difference], most: int = 3, first: str = "it has", second: str = "this one") -> str:
    """Return differences in one line, of long texts the part that differs."""
    said = [_in_words(one, first, second) for one in found[:most]]
    if len(found) > most:
        said.append(f"and in {plural(len(found) - most, 'more entry')}")
    return "; ".join(said)


def _in_words(one: Difference, first: str, second: str) -> str:
    line, *texts = _where_they_differ(one.first or "", one.second or "")
    shown = [text or "nothing" for text in texts]
    return f"{one.name}{f', line {line}' if line else ''}: {first} {shown[0]}, {second} {shown[1]}"


#: Characters of a text that are shown, and how many of them before the first one that differs.
_WIDE, _BEFORE = 80, 20


def _where_they_differ(first: str, second: str) -> tuple[int, str, str]:
    """Return the number of the first line in which two texts differ (0: they are single lines), and what differs."""
    number = 0
    if "\n" in first + second:
        lines = zip_longest(first.splitlines(), second.splitlines(), fillvalue="")
        number, (first, second) = next((at, both) for at, both in enumerate(lines, 1) if both[0] != both[1])
        first, second = first.strip(), second.strip()
    if max(len(first), len(second)) > _WIDE:
        letters = enumerate(zip(first, second, strict=False))
        start = max(next((at for at, (one, other) in letters if one != other), 0) - _BEFORE, 0)
        first, second = (_window(text, start) for text in (first, second))
    return number, first, second


def _window(text: str, start: int) -> str:
    end = start + _WIDE
    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")


#: The folder of texts below that of a cache.
KEYS = "regional_keys"

#: How many of the newest texts are looked at; bytes of the largest file of them that is read.
_MOST, _LARGEST = 200, 2**22


def keep_texts(folder: Path, key: str, texts: KeyTexts) -> None:
    """Write what the key of a result that is stored in ``folder`` is made of; without space or permission, do not."""
    below = folder / KEYS
    with contextlib.suppress(OSError):
        below.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(below / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.json", dumps(dict(texts)).encode())


def why_missed(folder: Path, texts: KeyTexts) -> str:
    """Return in which entries the key of a miss differs from the nearest stored one; empty where none is stored."""
    found = min((differences(stored, texts) for stored in _stored(folder / KEYS)), key=len, default=None)
    if found is None:
        return ""
    if not found:
        return "the same key is stored: its result could not be used, or its guards on sizes do not hold"
    return f"the nearest stored key differs in {in_words(found)}"


def _stored(folder: Path) -> Iterator[KeyTexts]:
    with contextlib.suppress(OSError):
        newest = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in newest[:_MOST]:
            with contextlib.suppress(DocumentError):
                yield read(path, dict[str, str], "key", most=_LARGEST)


__all__ = ["KEYS", "CacheKey", "Difference", "KeyTexts", "differences", "in_words", "keep_texts", "why_missed"]
