"""The two marks, checked at collection, and the files of known failures."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import unknown_name

COMPILE_MARK = "regional_compile"
KNOWN_FAILURE_MARK = "regional_known_failure"

MARKER_LINES = (
    f"{COMPILE_MARK}(backend=None, device=None, dynamic=None, fullgraph=True, inductor_configs=None, "
    "pre_grad_pass_timing=None, requires=(), device_requires=(), expects_regions=True, isolate=True): compile with the "
    "backend under test; skipped unless --regional-backend is given, isolated, counted, and failed when no region was "
    "compiled.",
    f'{KNOWN_FAILURE_MARK}(backend, reason, torch=">=2.13", device="cuda", strict=True): the test is known to fail '
    "with that backend on those torch versions and that kind of device; when it passes, the mark is to be removed and "
    "the test fails until it is.",
)


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
    return resolve_compile_mark(list(item.iter_markers(COMPILE_MARK)))


def resolve_compile_mark(marks: Sequence[pytest.Mark]) -> CompileMark | None:
    """As :func:`compile_mark`, from the marks themselves, nearest first."""
    if not marks:
        return None
    known = [f.name for f in dataclasses.fields(CompileMark)]
    merged: dict[str, Any] = {}
    for mark in reversed(marks):
        if mark.args:
            raise RegionalValueError(f"{COMPILE_MARK} takes keywords only, got {mark.args!r}")
        for name, value in mark.kwargs.items():
            if name not in known:
                raise RegionalValueError(f"{COMPILE_MARK}: {unknown_name('keyword', name, known)}")
            merged[name] = _checked(name, value)
    return CompileMark(**merged)


def _checked(name: str, value: Any) -> Any:
    if name == "backend":
        return None if value is None else _different(name, value)
    if name == "device":
        return None if value is None else _devices(value)
    if name == "requires":
        return _strings(name, value)
    if name == "device_requires":
        return _device_requirements(value)
    if name == "inductor_configs":
        return _configs(value)
    if name == "pre_grad_pass_timing":
        return _timing(value)
    if name == "dynamic" and value is None:
        return None
    if not isinstance(value, bool):
        raise RegionalValueError(f"{COMPILE_MARK}: {name} must be True or False, not {value!r}")
    return value


def _strings(name: str, value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, (tuple, list)) or not all(isinstance(s, str) and s for s in strings):
        raise RegionalValueError(f"{COMPILE_MARK}: {name} must be a name or a tuple of names, not {value!r}")
    return tuple(strings)


def _different(name: str, value: Any) -> tuple[str, ...]:
    """Check names that a test runs once for each of."""
    strings = _strings(name, value)
    if not strings:
        raise RegionalValueError(f"{COMPILE_MARK}: {name} is empty: name at least one, or leave the keyword out")
    doubled = sorted({one for one in strings if strings.count(one) > 1})
    if doubled:
        raise RegionalValueError(f"{COMPILE_MARK}: {name} lists {', '.join(doubled)} twice")
    if any("," in one for one in strings):
        raise RegionalValueError(
            f"{COMPILE_MARK}: {name} must be a name or a tuple of names, not {value!r}: one string a name"
        )
    return strings


def _devices(value: Any) -> tuple[str, ...]:
    from pytest_regional.harness.devices.device import check_device_name

    devices = _different("device", value)
    for device in devices:
        try:
            check_device_name(device)
        except RegionalValueError as error:
            raise RegionalValueError(f"{COMPILE_MARK}: {error}") from None
    return devices


def _device_requirements(value: Any) -> tuple[str, ...]:
    from pytest_regional.harness.devices.device import parse_requirement

    requirements = _strings("device_requires", value)
    for requirement in requirements:
        try:
            parse_requirement(requirement)
        except RegionalValueError as error:
            raise RegionalValueError(f"{COMPILE_MARK}: {error}") from None
    return requirements


def _configs(value: Any) -> dict[str, Any]:
    if value is not None and not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
        raise RegionalValueError(f"{COMPILE_MARK}: inductor_configs must be a dict of Inductor settings, not {value!r}")
    return dict(value or {})


def _timing(value: Any) -> str | None:
    from pytest_regional._torch.config import TIMINGS

    if value is not None and value not in TIMINGS:
        raise RegionalValueError(f"{COMPILE_MARK}: {unknown_name('pre_grad_pass_timing', value, TIMINGS)}")
    return value  # type: ignore[no-any-return]


def known_failures(item: pytest.Item) -> list[KnownFailure]:
    """Return the test's ``regional_known_failure`` marks.

    Raises:
        RegionalValueError: a mark without backend or reason, with an unknown keyword, or with a torch range that is
            none.
    """
    return [_known_failure(mark) for mark in item.iter_markers(KNOWN_FAILURE_MARK)]


def _known_failure(mark: pytest.Mark) -> KnownFailure:
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
    _check_known_failure(failure)
    return failure


def _check_known_failure(failure: KnownFailure) -> None:
    from pytest_regional.backends.capabilities import versions_in
    from pytest_regional.harness.devices.device import ALIASES, KINDS

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
    from pytest_regional._base.files import text_of  # every run of pytest imports this module

    try:
        text = text_of(file)
    except RegionalValueError as error:
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
