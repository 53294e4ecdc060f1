"""What a failed test leaves in ``--regional-report=DIR/``: PyTorch's structured trace, generated code, the failure.

Traces have to be written while a test runs, before its outcome is known. They go to the run's directory, from which
the process that was started copies those of failed tests, of a test too that takes its worker with it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_regional import _environment
from pytest_regional._code_files import (
    LONGEST_NAME,
    lines_at_fault,
    plain_name,
    sources_of,
    temporary_folder,
    write_code,
)
from pytest_regional._files import dumps
from pytest_regional._text import encodable
from pytest_regional.report.facts import CodeLine, Facts
from pytest_regional.report.places import within_repository
from pytest_regional.report.problems import bad_tests, message_of

if TYPE_CHECKING:
    import pytest

    from pytest_regional._session import RegionalSession
    from pytest_regional.harness.regional import Regional

#: What the directory with generated code is called in that of a test.
CODE = "code"


class Evidence:
    """The traces and the code of the tests of one process, or, in the process that was started, of all.

    Args:
        session: of this process.
    """

    def __init__(self, session: RegionalSession) -> None:
        self._directories = session.settings.reports.directories
        self._config = session.config
        self._folder = session.config.stash[_environment.FOLDER].parent / "evidence"
        self._failed: set[str] = set()

    def traced(self, test: str) -> AbstractContextManager[None]:
        """Return a context in which PyTorch's structured trace of ``test`` is kept, if it is asked for."""
        from pytest_regional._torch.process_state import structured_trace_off, structured_trace_to

        return structured_trace_to(self._of(test) / "trace") if self._directories else structured_trace_off()

    def code_at_fault(self, fact: Facts, error: BaseException, regional: Regional) -> list[CodeLine]:
        """Keep the code of a test that failed with ``error``, and return the lines of it that are concerned.

        Raises:
            OSError: it cannot be written.
        """
        kept, sources = self._code_of(fact), sources_of(error, regional)
        if kept is None:
            return []
        write_code(self._of(fact["test"]) / CODE if self._directories else kept, sources)
        lines = lines_at_fault(error, regional, kept, sources)
        if self._directories:
            for one in lines:
                one["file"] = within_repository(Path(one["path"]), self._config.rootpath) or one["path"]
        return lines

    def _code_of(self, fact: Facts) -> Path | None:
        """Return where the code of a test is once the run is over; ``None`` where nothing is kept."""
        if self._directories:
            return self._directories[0] / name_of(fact) / CODE
        temporary = temporary_folder(self._config)
        return temporary and temporary / name_of(fact)

    def keep(self, report: pytest.TestReport) -> None:
        """Keep what there is of a test that failed; forget one that did not fail at all."""
        if not self._directories:
            return
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._failed:
            shutil.rmtree(self._of(report.nodeid), ignore_errors=True)

    def write(self, facts: Sequence[Facts]) -> None:
        """Write a directory for each test that ended badly.

        Raises:
            OSError: it cannot be written.
        """
        for directory in self._directories:
            for fact in bad_tests(facts):
                _write(directory / name_of(fact), self._of(fact["test"]), fact)

    def _of(self, test: str) -> Path:
        return self._folder / hashlib.sha256(test.encode(errors="backslashreplace")).hexdigest()[:16]


def _write(folder: Path, kept: Path, fact: Facts) -> None:
    # Of an earlier run.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if kept.is_dir():
        shutil.copytree(kept, folder, dirs_exist_ok=True)
    said = fact["failure"] or message_of(fact, 1)
    _write_text(folder / "failure.txt", f"{said.rstrip()}\n")
    if "rerun" in fact:
        _write_text(folder / "rerun.txt", f"{fact['rerun']}\n")
    short: dict[str, Any] = {name: value for name, value in fact.items() if name not in ("details", "failure")}
    _write_text(folder / "test.json", dumps(short, indent=1) + "\n")


def _write_text(path: Path, text: str) -> None:
    path.write_text(encodable(text), encoding="utf-8")


def name_of(fact: Facts) -> str:
    """Return the name of a test's directory: readable, and another one for each test, backend and device."""
    whole = f"{fact['test']}-{fact['backend']}-{fact['device']}"
    digest = hashlib.sha256(whole.encode(errors="backslashreplace")).hexdigest()[:8]
    return f"{plain_name(fact['test'])[-LONGEST_NAME:].strip('-')}-{digest}"
