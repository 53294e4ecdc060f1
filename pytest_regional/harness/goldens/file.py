"""The files of goldens: reading, choosing, writing; and which goldens a test used.

Imports no torch: the process that starts the workers of pytest-xdist writes these files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from pytest_regional._base import files
from pytest_regional._base.errors import RegionalError, RegionalValueError
from pytest_regional._base.text import shown

if TYPE_CHECKING:
    from pytest_regional.harness.devices.device import DeviceUnderTest

FACT_NAMES = ("regions", "ops", "order", "fusions", "passes", "memory", "key")
"""The facts, in the order of a golden."""

Version = tuple[int, int]
"""Major and minor number of torch."""

Text = tuple[str, ...]
"""A golden: names of facts, and below each its lines, indented."""

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
    """The goldens of one test file."""

    comment: str = HEADER  # what stands above the first test
    #: by golden, by device class, by version: the text
    goldens: dict[GoldenKey, dict[str, dict[Version, Entry]]] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> GoldenFile:
        """Return what ``path`` holds; nothing where there is no such file."""
        if not path.exists():
            return GoldenFile()
        try:
            text = files.text_of(path)
        except RegionalValueError as error:
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
            # What is the same on several classes of devices is written once.
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
            if not line.strip():
                continue
            if line.startswith(TEST):
                self._test, self._entry = line.removeprefix(TEST), None
            elif line.startswith(ENTRY):
                self._note_header(line, number)
                entries[number] = line, []
                self._entry = entries[number][1]
            elif not self._test and line.startswith("#"):
                self._file.comment += f"{line}\n"
            elif self._entry is None:
                expected = f"expected a line that begins with {TEST!r}, then one that begins with {ENTRY!r}"
                self._wrong(number, line, expected)
            elif line in FACT_NAMES or (line.startswith("  ") and self._entry):
                self._entry.append(line)
            else:
                facts = ", ".join(FACT_NAMES)
                self._wrong(number, line, f"expected the name of a fact ({facts}), or an indented line below one")
        for number, (header, lines) in entries.items():
            if not lines:
                self._wrong(number, header, "no facts below it: delete the line, and run pytest --regional-update")
        for (key, device, version), number in self._headers.items():
            known = self._file.goldens.setdefault(key, {}).setdefault(device, {})
            known[version] = Entry(tuple(entries[number][1]), number)
        return self._file

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


@dataclass(frozen=True)
class UsedGolden:
    """A golden that a test compared with, or that it is to write."""

    key: GoldenKey
    device: str  # the class of the device
    version: Version  # of torch
    #: what is to be written; ``None`` where goldens are compared with, or the golden is as it should be
    text: Text | None = None
    state: str = "same"  # ``same``, ``changed`` or ``missing``: how it compares with what the file holds


@dataclass
class GoldensOfTest:
    """The goldens of one test: where they are, and by name, which it compared with or is to write.

    ``shown`` is the path for messages; ``test`` is without backend and device; with ``update`` goldens are written, not
    compared with.
    """

    path: Path
    shown: str
    test: str
    update: bool
    used: dict[str, UsedGolden] = field(default_factory=dict)


def device_class(device: DeviceUnderTest) -> str:
    """Return what goldens call a device: ``cpu``, ``cuda``, or ``cuda-emulated:h200``."""
    return f"{device.kind}:{device.profile}" if device.profile else device.kind
