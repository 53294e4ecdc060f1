"""What happens to marked tests at collection: checks, parametrization, skips, expected failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_regional import marks, settings

if TYPE_CHECKING:
    from pytest_regional.session import RegionalSession

TARGET_ARGUMENTS = ("regional_backend", "regional_device")


def parametrize(metafunc: pytest.Metafunc, session: RegionalSession) -> None:
    """Run the test once per backend and device; a single choice leaves the test's id as it is."""
    try:
        mark = marks.resolve_compile_mark(list(metafunc.definition.iter_markers(marks.COMPILE_MARK)))
    except marks.MarkError:
        return  # reported with the test's name when collection ends
    if mark is None:
        return
    choices = (mark.backend or session.settings.backends, mark.device or session.settings.devices)
    for argument, names in zip(TARGET_ARGUMENTS, choices, strict=True):
        if argument not in metafunc.fixturenames:
            metafunc.fixturenames.append(argument)
        if len(names) > 1:
            metafunc.parametrize(argument, names, indirect=True, ids=[session.short_name(name) for name in names])


def prepare(items: list[pytest.Item], session: RegionalSession | None) -> None:
    """Check the marks of all tests, then skip or prepare the marked ones.

    Raises:
        pytest.UsageError: with every wrong mark and the test it stands on.
    """
    problems = []
    for item in items:
        try:
            _prepare_one(item, session)
        except (marks.MarkError, LookupError, ValueError) as error:
            problems.append(f"{item.nodeid}: {error}")
    if session is not None:
        problems += session.known_failures.unmatched(items)
    if problems:
        raise pytest.UsageError("\n".join(dict.fromkeys(problems)))


def _prepare_one(item: pytest.Item, session: RegionalSession | None) -> None:
    mark = marks.compile_mark(item)
    if mark is None:
        return
    failures = marks.known_failures(item)
    if session is None:
        item.add_marker(pytest.mark.skip(reason=settings.OFF_REASON))
        return
    session.prepare(item, mark, failures)
