"""Failures of this plugin's own reporting: shown at the end of the run, which goes on.

A hook that raises is an internal error of pytest: the rest of the run is lost, with pytest-xdist every worker. So what
hooks do to report is guarded here. Nothing is swallowed: the run ends with a section that holds the tracebacks, and
fails.
"""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._plain_data import plain, shortened, text_of
from pytest_regional._text import encodable

if TYPE_CHECKING:
    from pytest_regional._session import RegionalSession


#: What the errors of a worker of pytest-xdist are called on its reports and in its output.
ATTRIBUTE = "regional_reporting_errors"


@dataclass(frozen=True)
class ReportingError:
    """One failure.

    Attributes:
        doing: what was being done, as it follows "while".
        text: the traceback.
    """

    doing: str
    text: str


class ReportingErrors:
    """The failures of one process; the process with the terminal has those of its workers as well."""

    def __init__(self) -> None:
        self._errors: list[ReportingError] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    def __len__(self) -> int:
        return len(self._errors)

    @contextlib.contextmanager
    def kept(self, doing: str) -> Iterator[None]:
        """Keep what the block raises and continue after it; an interrupt, and what ends a test, passes through."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - shown at the end of the run
            self.note(doing, error)

    @contextlib.contextmanager
    def around(self, doing: str, context: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
        """Run the block inside what ``context`` returns; keep what making, entering and leaving that raise."""
        with contextlib.ExitStack() as stack:
            with self.kept(doing):
                stack.enter_context(context())
            try:
                yield
            finally:
                with self.kept(doing):
                    stack.close()

    def note(self, doing: str, error: BaseException) -> None:
        """Keep ``error``."""
        text = "".join(traceback.format_exception(error))
        self._errors.append(ReportingError(encodable(doing), encodable(shortened(text))))

    def taken(self) -> list[list[str]]:
        """Return all errors as plain data that crosses processes, and forget them here."""
        taken = [[error.doing, error.text] for error in self._errors]
        self._errors.clear()
        return taken

    def add(self, taken: Iterable[list[str]], process: str = "") -> None:
        """Add what another process has :meth:`taken`."""
        beside = f" (on {process})" if process else ""
        self._errors += [ReportingError(doing + beside, text) for doing, text in taken]

    def write(self, reporter: Any) -> None:
        """Write every error, those with the same traceback once, with pytest's terminal writer."""
        if not self._errors:
            return
        reporter.section("regional reporting errors", sep="=", red=True)
        reporter.write_line(
            "pytest-regional itself failed where it reports. Outcomes of tests are right; what is printed above, and "
            "written to reports, is not complete, so the run fails. Please report this, with what follows:"
        )
        while_doing: dict[str, list[str]] = {}
        for error in self._errors:
            while_doing.setdefault(error.text, []).append(error.doing)
        for text, doings in while_doing.items():
            more = f", and {len(doings) - 1} times more" if len(doings) > 1 else ""
            reporter.write_line(f"while {doings[0]}{more}:", red=True)
            reporter.write_line(text.rstrip())


class PlainReportHooks:
    """Makes reports of all tests of the run plain: any of them could end it."""

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
