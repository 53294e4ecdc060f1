"""The key of a cache of compiled graphs as named texts, and in which of them two keys differ.

Texts are the same in every process. Those of the keys of stored results are files next to the results, so that a miss
says in which entry its key differs from the nearest of them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from pytest_regional._base.documents import DocumentError, read
from pytest_regional._base.files import dumps, write_whole
from pytest_regional._base.text import plural

KeyTexts = Mapping[str, str]
"""What a key is made of: a text by name, such as ``input 0, shape``."""


@functools.cache
def own_code(*packages: str) -> str:
    """Return a digest of the code of ``packages`` of this project, with that of ``_base`` and ``_torch``.

    It is part of the keys of what they store: another version of the code has another key.
    """
    root, digest = Path(__file__).parent.parent, hashlib.sha256()
    for package in ("_base", "_torch", *packages):
        for file in sorted((root / package).rglob("*.py")):
            digest.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


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
    said = []
    for one in found[:most]:
        number, texts = 0, (one.first or "", one.second or "")
        if any("\n" in text for text in texts):
            lines = zip_longest(texts[0].splitlines(), texts[1].splitlines(), fillvalue="")
            number, texts = next((at, both) for at, both in enumerate(lines, 1) if both[0] != both[1])
            texts = (texts[0].strip(), texts[1].strip())
        if max(map(len, texts)) > _WIDE:
            differ = (at for at, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1])
            start = max(next(differ, 0) - _BEFORE, 0)
            texts = (_window(texts[0], start), _window(texts[1], start))
        where = f", line {number}" if number else ""
        said.append(f"{one.name}{where}: {first} {texts[0] or 'nothing'}, {second} {texts[1] or 'nothing'}")
    if len(found) > most:
        said.append(f"and in {plural(len(found) - most, 'more entry')}")
    return "; ".join(said)


#: Characters of a text that are shown, and how many of them before the first one that differs.
_WIDE, _BEFORE = 80, 20


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
    found = []
    with contextlib.suppress(OSError):
        newest = sorted((folder / KEYS).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in newest[:_MOST]:
            with contextlib.suppress(DocumentError):
                found.append(differences(read(path, dict[str, str], "key", most=_LARGEST), texts))
    if not found:
        return ""
    nearest = min(found, key=len)
    if not nearest:
        return "the same key is stored: its result could not be used, or its guards on sizes do not hold"
    return f"the nearest stored key differs in {in_words(nearest)}"


__all__ = ["KEYS", "CacheKey", "Difference", "KeyTexts", "differences", "in_words", "keep_texts", "why_missed"]
