"""Files of goldens: text, one for each test file, with an entry for each version from which something is otherwise.

The form of a file::

    === test_block
    --- reference | from torch 2.11 | cpu, cuda
    regions
      forward, mlp: 3 ops, 1 partition
    --- reference | from torch 2.15 | cpu
    ...
    --- reference | name of a second golden | from torch 2.11 | cpu
    ...

An entry holds from its version of torch until the version of the next entry of the same golden and device class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

from pytest_regional._base.errors import RegionalError
from pytest_regional._base.files import TextFileError, text_of
from pytest_regional._base.text import shown

Version = tuple[int, int]
"""Major and minor number of torch."""

Text = tuple[str, ...]
"""A golden: names of facts, and below each its lines, indented."""

FACT_NAMES = ("regions", "ops", "order", "fusions", "passes", "memory", "key")
"""The facts in the order of a golden; :mod:`pytest_regional.harness.goldens.facts` says what each is."""

TEST, ENTRY, SEPARATOR = "=== ", "--- ", " | "

HEADER = (
    "# What compiles did: pytest-regional compares with it (docs/goldens.md). `pytest --regional-update` writes it.\n"
)

_VERSION = re.compile(r"from torch (\d+)\.(\d+)")
_CONFLICT = re.compile(r"(<<<<<<<|>>>>>>>|\|\|\|\|\|\|\|)( |$)|=======$")


class GoldenFileError(RegionalError, ValueError):
    """A file of goldens that is not understood; the message names it, the line, and what to do."""


class GoldenKey(NamedTuple):
    """Which golden: the test without backend and device, the backend, and a name where a test has several."""

    test: str
    backend: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.test} ({', '.join(filter(None, [self.backend, self.name]))})"


class Entry(NamedTuple):
    """A text, and the line of the file that its header is on; 0 for what is not yet in a file."""

    text: Text
    line: int = 0


@dataclass
class GoldenFile:
    """The goldens of one test file.

    Attributes:
        comment: what stands above the first test.
        goldens: by golden, by device class, by version: the text.
    """

    comment: str = HEADER
    goldens: dict[GoldenKey, dict[str, dict[Version, Entry]]] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> GoldenFile:
        """Return what ``path`` holds; nothing where there is no such file.

        Raises:
            GoldenFileError: it is damaged, or cannot be read.
        """
        if not path.exists():
            return GoldenFile()
        try:
            text = text_of(path)
        except TextFileError as error:
            raise GoldenFileError(str(error)) from error
        return _Parser(path).parsed(text)

    def holding(self, key: GoldenKey, device: str, version: Version) -> tuple[Version, Entry] | None:
        """Return the entry that holds for a version of torch, and its version: the last that is not later."""
        entries = self.goldens.get(key, {}).get(device, {})
        known = max((one for one in entries if one <= version), default=None)
        return None if known is None else (known, entries[known])

    def put(self, key: GoldenKey, device: str, version: Version, text: Text) -> None:
        """Have ``text`` hold from ``version`` on; entries of other versions stay, unless they say the same twice."""
        entries = self.goldens.setdefault(key, {}).setdefault(device, {})
        entries[version] = Entry(text)
        before: Text | None = None
        for one in sorted(entries):
            if entries[one].text == before:
                del entries[one]
            else:
                before = entries[one].text

    def remove(self, key: GoldenKey, device: str | None = None) -> None:
        """Remove a golden, of one device class or of all."""
        if device is not None:
            self.goldens[key].pop(device, None)
        if device is None or not self.goldens[key]:
            del self.goldens[key]

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n" if self.goldens else ""

    def _lines(self) -> Iterator[str]:
        if self.comment:
            yield self.comment.rstrip("\n")
        test = None
        for key in sorted(self.goldens):
            if key.test != test:
                yield f"\n{TEST}{key.test}"
            test = key.test
            yield from self._entries(key)

    def _entries(self, key: GoldenKey) -> Iterator[str]:
        """Yield the entries of one golden; what is the same on several classes of devices once."""
        devices: dict[tuple[Version, Text], list[str]] = {}
        for device, entries in sorted(self.goldens[key].items()):
            for version, entry in entries.items():
                devices.setdefault((version, entry.text), []).append(device)
        for (version, text), names in sorted(devices.items(), key=lambda item: (item[0][0], item[1])):
            parts = [key.backend, key.name, f"from torch {version[0]}.{version[1]}", ", ".join(names)]
            yield ENTRY + SEPARATOR.join(filter(None, parts))
            yield from text


class _Parser:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = GoldenFile(comment="")
        self._test = ""
        self._headers: dict[tuple[GoldenKey, str, Version], int] = {}
        self._entry: list[str] | None = None

    def parsed(self, text: str) -> GoldenFile:
        entries: dict[int, tuple[str, list[str]]] = {}
        for number, line in enumerate(text.split("\n"), 1):
            if _CONFLICT.match(line):
                self._wrong(number, line, "a merge conflict: keep one side, then run pytest --regional-update")
            if line.startswith(TEST):
                self._test, self._entry = line.removeprefix(TEST), None
            elif line.startswith(ENTRY):
                self._note_header(line, number)
                entries[number] = line, []
                self._entry = entries[number][1]
            elif line.strip():
                self._take(line, number)
        for number, (header, lines) in entries.items():
            if not lines:
                self._wrong(number, header, "no facts below it: delete the line, and run pytest --regional-update")
        for (key, device, version), number in self._headers.items():
            known = self._file.goldens.setdefault(key, {}).setdefault(device, {})
            known[version] = Entry(tuple(entries[number][1]), number)
        return self._file

    def _take(self, line: str, number: int) -> None:
        """Take a line that is no header."""
        indented = line.startswith("  ")
        if not self._test and line.startswith("#"):
            self._file.comment += f"{line}\n"
        elif self._entry is None:
            self._wrong(number, line, f"expected a line that begins with {TEST!r}, then one that begins with {ENTRY!r}")
        elif line in FACT_NAMES or (indented and self._entry):
            self._entry.append(line)
        else:
            self._wrong(
                number, line, f"expected the name of a fact ({', '.join(FACT_NAMES)}), or an indented line below one"
            )

    def _note_header(self, line: str, number: int) -> None:
        parts = line.removeprefix(ENTRY).split(SEPARATOR)
        version = _VERSION.fullmatch(parts[-2]) if len(parts) in (3, 4) and all(parts) else None
        if version is None:
            self._wrong(number, line, f"expected {ENTRY}BACKEND{SEPARATOR}from torch 2.13{SEPARATOR}DEVICES")
        if not self._test:
            self._wrong(number, line, f"expected a line {TEST}TEST before it")
        key = GoldenKey(self._test, parts[0], parts[1] if len(parts) == 4 else "")
        for device in parts[-1].split(", "):
            place = key, device, (int(version[1]), int(version[2]))
            if place in self._headers:
                self._wrong(number, line, f"the same golden as in line {self._headers[place]}: delete one of them")
            self._headers[place] = number

    def _wrong(self, number: int, line: str, why: str) -> NoReturn:
        raise GoldenFileError(f"{self._path}:{number}: {shown(line)!r}: {why}")
