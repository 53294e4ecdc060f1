"""Reports of tests, made plain before other plugins, other processes and files get them.

pytest-xdist ends a worker whose report it cannot send, and then the run.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._plain_data import plain, shortened, text_of
from pytest_regional._text import encodable

if TYPE_CHECKING:
    from pytest_regional.session import RegionalSession


class PlainReportHooks:
    """Registered beside the hooks of an active run; for all tests of it, since each ends the same run."""

    def __init__(self, session: RegionalSession) -> None:
        self._errors = session.errors

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Make texts of a report, and what the test recorded, plain."""
        report = yield
        with self._errors.kept(f"making the report of {item.nodeid} plain"):
            report.user_properties = [(text_of(name), plain(value)) for name, value in report.user_properties]
            report.sections = plain(report.sections)
            report.longrepr = _plain_longrepr(report.longrepr)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_to_serializable(self) -> Generator[None, Any, Any]:
        """Make what is sent plain, of collection too, and whatever a plugin put on the report."""
        data = yield
        with self._errors.kept("making a report plain"):
            data = plain(data)
        return data

    @pytest.hookimpl(tryfirst=True)
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, nodeid: str) -> None:
        """Put a text in place of a warning that has no text in UTF-8."""
        with self._errors.kept(f"making a warning of {nodeid} plain"):
            text = text_of(warning_message.message)
            if text != _text_or_none(warning_message.message):
                warning_message.message = text
            warning_message.filename = encodable(warning_message.filename)
            warning_message.line = encodable(warning_message.line) if warning_message.line else None


def _text_or_none(message: object) -> str | None:
    try:
        return str(message)
    except Exception:  # noqa: BLE001 - a class of the test's own
        return None


def _plain_longrepr(longrepr: Any) -> Any:
    """Return a report's failure plain: a text, a tuple, or pytest's own objects, which are changed."""
    if type(longrepr) in (str, tuple):
        return plain(longrepr)
    _make_plain(longrepr, set())
    return longrepr


def _make_plain(shown: Any, seen: set[int]) -> None:
    """Make all texts below an object of pytest's plain, in place."""
    if id(shown) in seen or not type(shown).__module__.startswith("_pytest."):
        return
    seen.add(id(shown))
    for name, value in vars(shown).items():
        setattr(shown, name, _made_plain(value, seen))


def _made_plain(value: Any, seen: set[int]) -> Any:
    if type(value) is str:
        return encodable(shortened(value))
    if type(value) in (list, tuple):
        return type(value)(_made_plain(one, seen) for one in value)
    _make_plain(value, seen)
    return value


__all__ = ["PlainReportHooks"]
