"""What a failed test leaves: PyTorch's structured trace, generated code as files, the failure.

Traces have to be written while a test runs, before its outcome is known. They go to the run's directory, from which
the process that was started copies those of failed tests to ``--regional-report=DIR/``, of a test too that takes its
worker with it. Caches of a test are deleted at its end, so its generated code is written again: to that directory, else
below pytest's directory for temporary files, of which pytest keeps those of the last three runs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _pytest._code.code import ExceptionRepr

from pytest_regional._base.errors import CampaignError
from pytest_regional._base.files import dumps
from pytest_regional._base.text import encodable
from pytest_regional._torch.process_state import structured_trace_off, structured_trace_to
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

#: What the directory is called in pytest's own.
FOLDER = "regional-code"


def sources_of(error: BaseException, regional: Regional) -> list[GeneratedSource]:
    """Return the generated code of a test that failed with ``error``, as much as is kept of it.

    Of a fuzz test that is the code of its findings: most of its programs are right.
    """
    if isinstance(error, CampaignError):
        return [source for sources in error.code.values() for source in sources[:_SHOWN]][:_SOURCES]
    return regional.observer.sources[-_SOURCES:]


def write_code(folder: Path, sources: Sequence[GeneratedSource]) -> None:
    """Write a file for each of ``sources``.

    Raises:
        OSError: it cannot be written.
    """
    for number, source in enumerate(sources):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _file_name(number, source)).write_text(source.text, encoding="utf-8", errors="backslashreplace")


def _file_name(number: int, source: GeneratedSource) -> str:
    return f"{number:02}-{plain_name('-'.join((source.graph, *source.regions)))[:LONGEST_NAME]}.py"


def plain_name(text: str) -> str:
    """Return ``text`` as the name of a file."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-")


def temporary_folder(config: pytest.Config) -> Path | None:
    """Return the directory for code of failed tests among pytest's temporary files; ``None`` under ``-p no:tmpdir``."""
    # A private attribute (pytest 8.0 to 9.2), since a hook has no fixture to ask.
    factory = getattr(config, "_tmp_path_factory", None)
    return None if factory is None else Path(factory.getbasetemp()) / FOLDER


def lines_at_fault(
    error: BaseException, regional: Regional, folder: Path, sources: Sequence[GeneratedSource]
) -> list[CodeLine]:
    """Return ``path``, ``line`` and ``what`` of each line in the code that ``error`` concerns.

    Args:
        error: of the test.
        regional: its harness.
        folder: where :func:`write_code` puts ``sources``.
        sources: the code that is kept.
    """
    names = {source.text: _file_name(number, source) for number, source in enumerate(sources)}
    # An exception of the test's may run code for any attribute.
    ours = str(type(error).__module__).startswith("pytest_regional.")
    places = [*_crashed_at(error, regional, names), *(_known_places(error, names) if ours else ())]
    if isinstance(error, CampaignError):
        return list(_of_findings(error, folder, sources))
    if ours and not places:
        places = [(names[source.text], *_beginning(source)) for source in sources[:_SHOWN]]
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


def _known_places(error: BaseException, names: dict[str, str]) -> Iterator[tuple[str, int, str]]:
    places: Sequence[CodePlace] = getattr(error, "places", ())
    for place in places:
        if place.source.text in names:
            yield names[place.source.text], place.line, place.what


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
        trace = error.__traceback__
        while trace is not None:
            path = trace.tb_frame.f_code.co_filename
            name = names.get(_text_of(path)) if path.startswith(f"{regional.folder}{os.sep}") else None
            if name is not None:
                yield name, trace.tb_lineno, f"raised {type(error).__name__}"
            trace = trace.tb_next
        error = error.__cause__ or error.__context__


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def add_section(report: pytest.TestReport, lines: Sequence[CodeLine]) -> None:
    """Add the ``lines`` of generated code to what pytest says of a failure, in JUnit files too."""
    if not lines:
        return
    text = "\n".join(f"{one['path']}:{one['line']}: {one['what']}" for one in lines)
    said = report.longrepr
    if isinstance(said, ExceptionRepr):
        said.addsection("generated code", text)
    elif isinstance(said, str):
        report.longrepr = f"{said.rstrip()}\ngenerated code:\n{text}"
    else:
        report.sections.append(("generated code", text))


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
        self._folder = session.config.stash[environment.FOLDER].parent / "evidence"
        self._failed: set[str] = set()

    def traced(self, test: str) -> AbstractContextManager[None]:
        """Return a context in which PyTorch's structured trace of ``test`` is kept, if it is asked for."""
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
