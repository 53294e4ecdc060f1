"""The two marks: what they accept, checked at collection."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_regional._base.errors import RegionalError, RegionalValueError
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


class MarkError(RegionalError, ValueError):
    """A mark that cannot be understood; becomes a usage error that names the test."""


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
        MarkError: positional arguments, an unknown keyword, or a value of the wrong kind.
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
            raise MarkError(f"{COMPILE_MARK} takes keywords only, got {mark.args!r}")
        for name, value in mark.kwargs.items():
            if name not in known:
                raise MarkError(f"{COMPILE_MARK}: {unknown_name('keyword', name, known)}")
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
        raise MarkError(f"{COMPILE_MARK}: {name} must be True or False, not {value!r}")
    return value


def _strings(name: str, value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, (tuple, list)) or not all(isinstance(s, str) and s for s in strings):
        raise MarkError(f"{COMPILE_MARK}: {name} must be a name or a tuple of names, not {value!r}")
    return tuple(strings)


def _different(name: str, value: Any) -> tuple[str, ...]:
    """Check names that a test runs once for each of."""
    strings = _strings(name, value)
    if not strings:
        raise MarkError(f"{COMPILE_MARK}: {name} is empty: name at least one, or leave the keyword out")
    doubled = sorted({one for one in strings if strings.count(one) > 1})
    if doubled:
        raise MarkError(f"{COMPILE_MARK}: {name} lists {', '.join(doubled)} twice")
    if any("," in one for one in strings):
        raise MarkError(f"{COMPILE_MARK}: {name} must be a name or a tuple of names, not {value!r}: one string a name")
    return strings


def _devices(value: Any) -> tuple[str, ...]:
    from pytest_regional.harness.devices.device import DeviceError, check_device_name

    devices = _different("device", value)
    for device in devices:
        try:
            check_device_name(device)
        except DeviceError as error:
            raise MarkError(f"{COMPILE_MARK}: {error}") from None
    return devices


def _device_requirements(value: Any) -> tuple[str, ...]:
    from pytest_regional.harness.devices.device import parse_requirement

    requirements = _strings("device_requires", value)
    for requirement in requirements:
        try:
            parse_requirement(requirement)
        except RegionalValueError as error:
            raise MarkError(f"{COMPILE_MARK}: {error}") from None
    return requirements


def _configs(value: Any) -> dict[str, Any]:
    if value is not None and not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
        raise MarkError(f"{COMPILE_MARK}: inductor_configs must be a dict of Inductor settings, not {value!r}")
    return dict(value or {})


def _timing(value: Any) -> str | None:
    from pytest_regional._torch.config import TIMINGS

    if value is not None and value not in TIMINGS:
        raise MarkError(f"{COMPILE_MARK}: {unknown_name('pre_grad_pass_timing', value, TIMINGS)}")
    return value  # type: ignore[no-any-return]


def known_failures(item: pytest.Item) -> list[KnownFailure]:
    """Return the test's ``regional_known_failure`` marks.

    Raises:
        MarkError: a mark without backend or reason, with an unknown keyword, or with a torch range that is none.
    """
    return [_known_failure(mark) for mark in item.iter_markers(KNOWN_FAILURE_MARK)]


def _known_failure(mark: pytest.Mark) -> KnownFailure:
    known = [f.name for f in dataclasses.fields(KnownFailure)]
    for name in mark.kwargs:
        if name not in known:
            raise MarkError(f"{KNOWN_FAILURE_MARK}: {unknown_name('keyword', name, known)}")
    try:
        failure = KnownFailure(*mark.args, **mark.kwargs)
    except TypeError:
        raise MarkError(
            f"{KNOWN_FAILURE_MARK} needs a backend and a reason: got {mark.args!r} {mark.kwargs!r}"
        ) from None
    _check_known_failure(failure)
    return failure


def _check_known_failure(failure: KnownFailure) -> None:
    from pytest_regional.backends.capabilities import versions_in
    from pytest_regional.harness.devices.device import ALIASES, KINDS

    if not isinstance(failure.backend, str) or not failure.backend:
        raise MarkError(f"{KNOWN_FAILURE_MARK}: backend must be the name of one backend, not {failure.backend!r}")
    if not isinstance(failure.reason, str) or not failure.reason.strip():
        raise MarkError(f"{KNOWN_FAILURE_MARK}: reason must say what fails and where it is reported")
    if failure.device not in ("", *KINDS):
        raise MarkError(f"{KNOWN_FAILURE_MARK}: {unknown_name('kind of device', failure.device, KINDS, ALIASES)}")
    if not isinstance(failure.strict, bool):
        raise MarkError(f"{KNOWN_FAILURE_MARK}: strict must be True or False, not {failure.strict!r}")
    try:
        versions_in(failure.torch)
    except ValueError as error:
        raise MarkError(f"{KNOWN_FAILURE_MARK}: torch={error}") from None
