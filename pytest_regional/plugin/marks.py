"""The two marks, checked at collection, and the files of known failures."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.files import text_of
from pytest_regional._base.text import unknown_name
from pytest_regional._torch.config import TIMINGS
from pytest_regional.backends.capabilities import Capabilities, present_name, versions_in
from pytest_regional.harness.devices.device import ALIASES, KINDS, check_device_name, parse_requirement
from pytest_regional.plugin.fixtures import COMPILE_MARK, KNOWN_FAILURE_MARK


@dataclass(frozen=True)
class CompileMark:
    """The resolved ``regional_compile`` mark of one test: marks nearer to the test win keyword by keyword."""

    backend: tuple[str, ...] | None = None
    device: tuple[str, ...] | None = None
    dynamic: bool | None = None
    fullgraph: bool = True
    inductor_configs: dict[str, Any] = field(default_factory=dict)
    pre_grad_pass_timing: str | None = None
    requires: tuple[str, ...] = ()
    device_requires: tuple[str, ...] = ()
    expects_regions: bool = True
    isolate: bool = True


@dataclass(frozen=True)
class KnownFailure:
    """One ``regional_known_failure`` mark; ``device`` is a kind of device, or empty for all."""

    backend: str
    reason: str
    torch: str = ""
    device: str = ""
    strict: bool = True


def compile_mark(item: pytest.Item) -> CompileMark | None:
    """Return the test's ``regional_compile`` mark, or ``None`` for a test without one.

    Raises:
        RegionalValueError: positional arguments, an unknown keyword, or a value of the wrong kind.
    """
    known = [f.name for f in dataclasses.fields(CompileMark)]
    marks = list(item.iter_markers(COMPILE_MARK))
    merged: dict[str, Any] = {}
    for mark in reversed(marks):  # the nearest comes first
        if mark.args:
            raise RegionalValueError(f"{COMPILE_MARK} takes keywords only, got {mark.args!r}")
        for name, value in mark.kwargs.items():
            if name not in known:
                raise RegionalValueError(f"{COMPILE_MARK}: {unknown_name('keyword', name, known)}")
            merged[name] = _checked(name, value)
    return CompileMark(**merged) if marks else None


def _checked(name: str, value: Any) -> Any:
    if value is None and name in ("backend", "device", "dynamic", "inductor_configs", "pre_grad_pass_timing"):
        return {} if name == "inductor_configs" else None
    if name in ("backend", "device", "requires", "device_requires"):
        return _strings(name, value)
    if name == "inductor_configs":
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise RegionalValueError(
                f"{COMPILE_MARK}: inductor_configs must be a dict of Inductor settings, not {value!r}"
            )
        return dict(value)
    if name == "pre_grad_pass_timing":
        if value not in TIMINGS:
            raise RegionalValueError(f"{COMPILE_MARK}: {unknown_name('pre_grad_pass_timing', value, TIMINGS)}")
    elif not isinstance(value, bool):
        raise RegionalValueError(f"{COMPILE_MARK}: {name} must be True or False, not {value!r}")
    return value


def _strings(name: str, value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, (tuple, list)) or not all(isinstance(s, str) and s for s in strings):
        raise RegionalValueError(f"{COMPILE_MARK}: {name} must be a name or a tuple of names, not {value!r}")
    if name in ("backend", "device"):  # a test runs once for each of them
        if not strings:
            raise RegionalValueError(f"{COMPILE_MARK}: {name} is empty: name at least one, or leave the keyword out")
        doubled = sorted({one for one in strings if strings.count(one) > 1})
        if doubled:
            raise RegionalValueError(f"{COMPILE_MARK}: {name} lists {', '.join(doubled)} twice")
        if any("," in one for one in strings):
            raise RegionalValueError(
                f"{COMPILE_MARK}: {name} must be a name or a tuple of names, not {value!r}: one string a name"
            )
    checks: dict[str, Callable[[str], object]] = {"device": check_device_name, "device_requires": parse_requirement}
    for one in strings if name in checks else ():
        try:
            checks[name](one)
        except RegionalValueError as error:
            raise RegionalValueError(f"{COMPILE_MARK}: {error}") from None
    return tuple(map(present_name, strings)) if name == "requires" else tuple(strings)


def known_failure(mark: pytest.Mark) -> KnownFailure:
    """Return what a ``regional_known_failure`` mark says.

    Raises:
        RegionalValueError: no backend or reason, an unknown keyword, or a torch range that is none.
    """
    known = [f.name for f in dataclasses.fields(KnownFailure)]
    for name in mark.kwargs:
        if name not in known:
            raise RegionalValueError(f"{KNOWN_FAILURE_MARK}: {unknown_name('keyword', name, known)}")
    try:
        failure = KnownFailure(*mark.args, **mark.kwargs)
    except TypeError:
        raise RegionalValueError(
            f"{KNOWN_FAILURE_MARK} needs a backend and a reason: got {mark.args!r} {mark.kwargs!r}"
        ) from None
    if not isinstance(failure.backend, str) or not failure.backend:
        raise RegionalValueError(
            f"{KNOWN_FAILURE_MARK}: backend must be the name of one backend, not {failure.backend!r}"
        )
    if not isinstance(failure.reason, str) or not failure.reason.strip():
        raise RegionalValueError(f"{KNOWN_FAILURE_MARK}: reason must say what fails and where it is reported")
    if failure.device not in ("", *KINDS):
        raise RegionalValueError(
            f"{KNOWN_FAILURE_MARK}: {unknown_name('kind of device', failure.device, KINDS, ALIASES)}"
        )
    if not isinstance(failure.strict, bool):
        raise RegionalValueError(f"{KNOWN_FAILURE_MARK}: strict must be True or False, not {failure.strict!r}")
    try:
        versions_in(failure.torch)
    except ValueError as error:
        raise RegionalValueError(f"{KNOWN_FAILURE_MARK}: torch={error}") from None
    return failure


@dataclass(frozen=True)
class Line:
    """One known failure and where it is written."""

    backend: str
    pattern: str
    reason: str
    link: str
    source: str

    def is_of(self, files: set[str]) -> bool:
        """Return whether the line names tests, and is about one of the test ``files`` or says of no file."""
        file = self.pattern.partition("::")[0]
        names_no_file = not file.endswith(".py") and "*" not in file
        return self.capability is None and (names_no_file or any(fnmatch.fnmatchcase(one, file) for one in files))

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
        # Ids of parametrized tests hold brackets, which stand for themselves: only ``*`` and ``?`` are wild.
        return fnmatch.fnmatchcase(nodeid, self.pattern.replace("[", "[[]"))


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
            if line not in self._matched and line.is_of(files)
        ]


def _lines_of(file: Path) -> Iterator[Line]:
    try:
        text = text_of(file)
    except RegionalValueError as error:
        raise pytest.UsageError(f"known failures: {error}") from error
    for number, written in enumerate(map(str.strip, text.split("\n")), 1):
        if not written or written.startswith("#"):
            continue
        source, parts = f"{file}:{number}", [part.strip() for part in written.split("|")]
        if len(parts) != 4 or not all(parts):
            raise pytest.UsageError(
                f"{source}: expected 'backend | test or capability:NAME | reason | link', all four, got {written!r}"
            )
        line = Line(parts[0], parts[1], parts[2], parts[3], source)
        if line.capability is not None:
            name = present_name(line.capability)
            if name not in Capabilities.names():
                raise pytest.UsageError(f"{source}: {unknown_name('capability', name, Capabilities.names())}")
            line = dataclasses.replace(line, pattern=f"capability:{name}")
        yield line
