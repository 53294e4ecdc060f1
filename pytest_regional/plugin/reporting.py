"""Failures of this plugin's own reporting: shown at the end of the run, which goes on.

A hook that raises is an internal error of pytest: the rest of the run is lost, with pytest-xdist every worker. So what
hooks do to report is guarded here. Nothing is swallowed: the run ends with a section that holds the tracebacks, and
fails.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pytest_regional._base.text import encodable

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
        self._errors.append(ReportingError(encodable(doing), encodable(text)))

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
