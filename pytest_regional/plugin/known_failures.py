"""The adopter's text file of known failures: each line with a reason and a link, a line that matches nothing an error.

Format, one failure a line, ``#`` starts a comment line::

    # backend | test or capability:NAME | reason | link
    mine | suites/models/test_llama.py::test_parity* | bf16 rotary loses a bit | https://example.org/42
    mine | capability:rng | draws differ under dropout | https://example.org/43
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_regional._base.files import TextFileError, text_of
from pytest_regional._base.text import unknown_name


@dataclass(frozen=True)
class Line:
    """One known failure and where it is written."""

    backend: str
    pattern: str
    reason: str
    link: str
    source: str

    @property
    def text(self) -> str:
        """The reason and the link."""
        return f"{self.reason} ({self.link})"

    @property
    def capability(self) -> str | None:
        """The capability that the line is about, or ``None`` when it names tests."""
        return self.pattern.removeprefix("capability:") if self.pattern.startswith("capability:") else None

    def matches(self, nodeid: str, backend: str, requires: Sequence[str]) -> bool:
        """Return whether the line is about this test on this backend."""
        if backend != self.backend:
            return False
        if self.capability is not None:
            return self.capability in requires
        return fnmatch.fnmatchcase(nodeid, _literal_brackets(self.pattern))


def _literal_brackets(pattern: str) -> str:
    """Parametrized ids hold brackets; in this file they stand for themselves and only ``*`` and ``?`` are wild."""
    return pattern.replace("[", "[[]")


@dataclass
class KnownFailures:
    """All lines of all files, and which of them matched a test."""

    lines: tuple[Line, ...] = ()
    _matched: set[Line] = field(default_factory=set)

    @staticmethod
    def read(files: Iterable[Path], backends: set[str]) -> KnownFailures:
        """Read ``files``; lines of backends that are not under test are ignored.

        Raises:
            pytest.UsageError: an unreadable file or a line that is not four fields, naming file and line number.
        """
        lines = [line for file in files for line in _lines_of(file)]
        return KnownFailures(tuple(line for line in lines if line.backend in backends))

    def matching(self, nodeid: str, backend: str, requires: Sequence[str]) -> list[Line]:
        """Return the lines about this test."""
        found = [line for line in self.lines if line.matches(nodeid, backend, requires)]
        self._matched.update(found)
        return found

    def unmatched(self, items: Sequence[pytest.Item]) -> list[str]:
        """Return a complaint for each line that matches no collected test although its file was collected.

        A run of some of the files says nothing about lines for others.
        """
        files = {item.nodeid.partition("::")[0] for item in items}
        return [
            f"{line.source}: {line.pattern!r} matches no test: remove the line, or correct its pattern"
            for line in self.lines
            if line not in self._matched and _was_collected(line, files)
        ]


def _was_collected(line: Line, files: set[str]) -> bool:
    if line.capability is not None:
        return False
    file = line.pattern.partition("::")[0]
    return any(fnmatch.fnmatchcase(collected, file) for collected in files) or not _names_a_file(file)


def _names_a_file(pattern: str) -> bool:
    return pattern.endswith(".py") or "*" in pattern


def _lines_of(file: Path) -> list[Line]:
    try:
        text = text_of(file)
    except TextFileError as error:
        raise pytest.UsageError(f"known failures: {error}") from error
    numbered = ((number, line.strip()) for number, line in enumerate(text.split("\n"), 1))
    return [_parse(line, f"{file}:{number}") for number, line in numbered if line and not line.startswith("#")]


def _parse(text: str, source: str) -> Line:
    parts = [part.strip() for part in text.split("|")]
    if len(parts) != 4 or not all(parts):
        raise pytest.UsageError(
            f"{source}: expected 'backend | test or capability:NAME | reason | link', all four, got {text!r}"
        )
    line = Line(parts[0], parts[1], parts[2], parts[3], source)
    _check_capability(line)
    return line


def _check_capability(line: Line) -> None:
    from pytest_regional.backends.capabilities import Capabilities

    if line.capability is not None and line.capability not in Capabilities.names():
        raise pytest.UsageError(f"{line.source}: {unknown_name('capability', line.capability, Capabilities.names())}")
