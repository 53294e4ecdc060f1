"""What a failed test leaves: PyTorch's structured trace, generated code as files, the failure.

Traces have to be written while a test runs, before its outcome is known. They go to the run's directory, from which
the process that was started copies those of failed tests to ``--regional-report=DIR/``, of a test too that takes its
worker with it. Caches of a test are deleted at its end, so its generated code is written again: to that directory, else
below pytest's directory for temporary files, of which pytest keeps those of the last three runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _pytest._code.code import ExceptionRepr

from pytest_regional._base.errors import CampaignError
from pytest_regional._base.files import dumps
from pytest_regional._base.text import encodable
from pytest_regional.plugin import environment
from pytest_regional.report.ci import bad_tests, message_of
from pytest_regional.report.facts import CodeLine, Facts, within_repository

if TYPE_CHECKING:
    import pytest

    from pytest_regional.harness.codegen.kernels import CodePlace
    from pytest_regional.harness.record import GeneratedSource
    from pytest_regional.harness.regional import Regional
    from pytest_regional.plugin.session import RegionalSession

#: Characters of a test's id, or of regions, in the name of a file.
LONGEST_NAME = 80

#: Generated sources that are kept of a test; a fuzz test has thousands.
_SOURCES = 50

#: How much code is named where it is not known which line of it is at fault.
_SHOWN = 3


def _file_name(number: int, source: GeneratedSource) -> str:
    return f"{number:02}-{plain_name('-'.join((source.graph, *source.regions)))[:LONGEST_NAME]}.py"


def plain_name(text: str) -> str:
    """Return ``text`` as the name of a file."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-")


def lines_at_fault(
    error: BaseException, regional: Regional, folder: Path, sources: Sequence[GeneratedSource]
) -> list[CodeLine]:
    """Return ``path``, ``line`` and ``what`` of each line in the code that ``error`` concerns."""
    if isinstance(error, CampaignError):
        return list(_of_findings(error, folder, sources))
    names = {source.text: _file_name(number, source) for number, source in enumerate(sources)}
    places = list(_crashed_at(error, regional, names))
    # An exception of the test's may run code for any attribute.
    if str(type(error).__module__).startswith("pytest_regional."):
        known: Sequence[CodePlace] = getattr(error, "places", ())
        places += [(names[one.source.text], one.line, one.what) for one in known if one.source.text in names]
        places = places or [(names[source.text], *_beginning(source)) for source in sources[:_SHOWN]]
    found = {(name, line): what for name, line, what in places}
    return [{"path": str(folder / name), "line": line, "what": what} for (name, line), what in found.items()]


def _of_findings(error: CampaignError, folder: Path, kept: Sequence[GeneratedSource]) -> Iterator[CodeLine]:
    """Yield where the code of each finding's program begins to run."""
    names = {id(source): _file_name(number, source) for number, source in enumerate(kept)}
    for finding, sources in error.code.items():
        for source in sources:
            if id(source) in names:
                line, what = _beginning(source)
                said = f"{what} of finding {finding}"
                yield {"path": str(folder / names[id(source)]), "line": line, "what": said, "finding": finding}


def _beginning(source: GeneratedSource) -> tuple[int, str]:
    """Return the line at which the code begins to run."""
    before, found, _ = source.text.partition("def call(")
    regions = f", regions {', '.join(source.regions)}" if source.regions else ""
    return before.count("\n") + 1 if found else 1, f"the code of the {source.graph} graph{regions}"


def _crashed_at(
    error: BaseException | None, regional: Regional, names: dict[str, str]
) -> Iterator[tuple[str, int, str]]:
    """Yield the lines of generated code that raised, of the error and of those that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for frame, line in traceback.walk_tb(error.__traceback__):
            path = frame.f_code.co_filename
            if path.startswith(f"{regional.folder}{os.sep}"):
                with contextlib.suppress(OSError):
                    text = Path(path).read_text(encoding="utf-8", errors="replace")
                    if text in names:
                        yield names[text], line, f"raised {type(error).__name__}"
        error = error.__cause__ or error.__context__


def add_text(report: pytest.TestReport, name: str, text: str, label: str = "") -> None:
    """Add ``text`` to what pytest says of a failure, in JUnit files too: as section ``name``, or below ``label``."""
    said = report.longrepr
    if isinstance(said, ExceptionRepr):
        said.addsection(name, text)
    elif isinstance(said, str):
        report.longrepr = f"{said.rstrip()}\n{label}{text}"
    else:
        report.sections.append((name, text))


#: What the directory with generated code is called in that of a test.
CODE = "code"


class Evidence:
    """The traces and the code of the tests of one process, or, in the process that was started, of all."""

    def __init__(self, session: RegionalSession) -> None:
        self._directories = session.settings.reports.directories
        self._config = session.config
        self._folder = session.config.stash[environment.FOLDER].parent / "evidence"
        self._failed: set[str] = set()

    def trace_folder(self, test: str) -> Path | None:
        """Return where to keep PyTorch's structured trace of ``test``; ``None`` unless it is asked for."""
        return self._of(test) / "trace" if self._directories else None

    def code_at_fault(self, fact: Any, error: BaseException, regional: Regional) -> list[CodeLine]:
        """Keep the code of a test that failed with ``error``, and return the lines of it that are concerned."""
        kept = self._code_of(fact)
        if kept is None:
            return []
        sources = regional.observer.sources[-_SOURCES:]
        if isinstance(error, CampaignError):  # most of its programs are right
            sources = [source for found in error.code.values() for source in found[:_SHOWN]][:_SOURCES]
        folder = self._of(fact["test"]) / CODE if self._directories else kept
        for number, source in enumerate(sources):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / _file_name(number, source)
            path.write_text(source.text, encoding="utf-8", errors="backslashreplace")
        lines = lines_at_fault(error, regional, kept, sources)
        if self._directories:
            for one in lines:
                one["file"] = within_repository(Path(one["path"]), self._config.rootpath) or one["path"]
        return lines

    def _code_of(self, fact: Facts) -> Path | None:
        """Return where the code of a test is once the run is over; ``None`` where nothing is kept."""
        if self._directories:
            return self._directories[0] / name_of(fact) / CODE
        # A private attribute (pytest 8.0 to 9.2), since a hook has no fixture to ask; not there under `-p no:tmpdir`.
        factory = getattr(self._config, "_tmp_path_factory", None)
        return None if factory is None else Path(factory.getbasetemp()) / "regional-code" / name_of(fact)

    def keep(self, report: pytest.TestReport) -> None:
        """Keep what there is of a test that failed; forget one that did not fail at all."""
        if not self._directories:
            return
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._failed:
            shutil.rmtree(self._of(report.nodeid), ignore_errors=True)

    def write(self, facts: Sequence[Facts]) -> None:
        """Write a directory for each test that ended badly."""
        for directory in self._directories:
            for fact in bad_tests(facts):
                folder, kept = directory / name_of(fact), self._of(fact["test"])
                shutil.rmtree(folder, ignore_errors=True)  # of an earlier run
                folder.mkdir(parents=True)
                if kept.is_dir():
                    shutil.copytree(kept, folder, dirs_exist_ok=True)
                short: dict[str, Any] = {name: one for name, one in fact.items() if name not in ("details", "failure")}
                texts = {"failure.txt": fact["failure"] or message_of(fact, 1), "test.json": dumps(short, indent=1)}
                if "rerun" in fact:
                    texts["rerun.txt"] = fact["rerun"]
                for name, text in texts.items():
                    (folder / name).write_text(encodable(f"{text.rstrip()}\n"), encoding="utf-8")

    def _of(self, test: str) -> Path:
        return self._folder / hashlib.sha256(test.encode(errors="backslashreplace")).hexdigest()[:16]


def name_of(fact: Facts) -> str:
    """Return the name of a test's directory: readable, and another one for each test, backend and device."""
    whole = f"{fact['test']}-{fact['backend']}-{fact['device']}"
    digest = hashlib.sha256(whole.encode(errors="backslashreplace")).hexdigest()[:8]
    return f"{plain_name(fact['test'])[-LONGEST_NAME:].strip('-')}-{digest}"
