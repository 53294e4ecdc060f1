"""``bug-report``: write a finding, a script or a failed test as a bug report for PyTorch's tracker."""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional._base.files import write_whole
from pytest_regional.backends.registry import BackendImportError, UnknownBackendError, resolve
from pytest_regional.cli import bisect_version
from pytest_regional.cli.targets import UsageError

if TYPE_CHECKING:
    from pytest_regional.bug_report.gathering import BugReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        f"{parser.description} A finding's program is made a short script that needs torch alone; it runs with each "
        "stage of the compiler, with other seeds and with other releases, and is searched for its culprit. Exit status "
        "0: the report is written; 1: the failure does not come here; 2: a usage error. A script, a test and the "
        "backend that a finding names are run as they are: give only what you trust."
    )
    parser.add_argument(
        "subject",
        metavar="FINDING|NODEID",
        help="a finding's .json, a script (.py) that fails where the defect stands, or a test: path/test_x.py::test_y",
    )
    parser.add_argument(
        "--format", choices=("github",), default="github", help="what it is written for (default: github)"
    )
    parser.add_argument("--output", metavar="FILE", type=Path, help="where to write it (default: standard output)")
    parser.add_argument("--backend", metavar="NAME", default="", help="one more backend to compare with eager")
    parser.add_argument(
        "--options", metavar="TEXT", default="", help="options of pytest for a test: --options='--regional-seed=3'"
    )
    parser.add_argument("--torch", metavar="VERSIONS", default="", help="releases to try as well: 2.11.0,2.15.0")
    bisect_version.add_environments(parser)
    parser.add_argument(
        "--blame-seconds",
        metavar="S",
        type=_seconds,
        default=60.0,
        help="how long to search for the culprit (default: 60)",
    )
    parser.add_argument(
        "--findings",
        metavar="DIR",
        type=Path,
        default=Path("regional-findings"),
        help="findings that it may be a duplicate of (default: regional-findings, where that is there)",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="keep PyTorch's structured trace as an archive next to the report, with pages where tlparse is installed; "
        "it names directories of this machine",
    )


def run(asked: argparse.Namespace) -> int:
    """Write the report; return the exit status."""
    if asked.trace and asked.output is None:
        raise UsageError("--trace needs --output: the archive is written next to the report")
    if asked.output is not None:
        _check_writable(asked.output)
    if asked.backend:
        try:
            resolve(asked.backend)
        except (UnknownBackendError, BackendImportError) as error:
            raise UsageError(f"--backend: {error}") from error
    versions = bisect_version.versions(asked.torch) if asked.torch else []
    try:
        from pytest_regional.bug_report.gathering import as_markdown  # it imports torch
    except ImportError as error:
        raise UsageError(f"no report can be made here: {error}.") from error

    with tempfile.TemporaryDirectory(prefix="pytest-regional-report-", ignore_cleanup_errors=True) as folder:
        try:
            report = _gathered(asked, Path(folder), versions)
        except RegionalRuntimeError as error:
            print(error, file=sys.stderr)
            return 1
    text = as_markdown(report)
    if asked.output is None:
        print(text, end="")
        return 0
    try:
        write_whole(asked.output, text.encode())
    except OSError as error:
        # It took minutes.
        print(text, end="")
        raise UsageError(
            f"{asked.output} cannot be written: {error.strerror}. The report is on standard output."
        ) from error
    return 0


def _seconds(text: str) -> float:
    """Return a number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds: give 0 or more")
    return seconds


def _check_writable(output: Path) -> None:
    """Refuse before the minutes that a report takes."""
    folder = output.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{output} cannot be written: there is no directory {output.parent}")
    if output.exists() and not output.is_file():
        raise UsageError(f"{output} cannot be written: it is a directory or a device; name a file")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from error


def _gathered(asked: argparse.Namespace, folder: Path, versions: list[str]) -> BugReport:
    from pytest_regional.bug_report.gathering import gather
    from pytest_regional.bug_report.known_issues import kept_findings, public_issues
    from pytest_regional.bug_report.running import Changes, ScriptRunner, render_trace, subject_of_test
    from pytest_regional.bug_report.scripts import subject_of

    path = Path(asked.subject)
    if "::" in asked.subject:
        subject = subject_of_test(asked.subject, asked.options)
    elif path.is_file() and path.suffix in (".json", ".py"):
        subject = subject_of(path)
    else:
        raise UsageError(
            f"{asked.subject} is no finding: give a finding's .json, a script, or a test as path/test_x.py::test_y"
        )
    kept = kept_findings(asked.findings) if asked.findings.is_dir() else ()
    trace = folder / "trace" if asked.trace else None
    report = gather(
        subject,
        ScriptRunner(folder / "here"),
        backend=asked.backend,
        blame_seconds=asked.blame_seconds,
        issues=(*public_issues(), *kept),
        trace=trace,
    )
    if trace is not None and trace.is_dir():  # a script that hangs is not run for it
        render_trace(trace)
        archive = asked.output.with_suffix(".trace.zip")
        try:
            shutil.make_archive(str(archive.with_suffix("")), "zip", trace)
        except OSError as error:
            raise UsageError(f"{archive} cannot be written: {error.strerror}") from error
        report = dataclasses.replace(report, trace=archive.name)
    if not versions:
        return report
    runs, checked = {}, []
    for version in versions:
        python = bisect_version.environment(asked, version)
        run = runs[version] = ScriptRunner(folder / version, python).run(report.script, Changes())
        status = 1 if run.shows else {"right": 0}.get(run.outcome, 2)
        checked.append(bisect_version.Checked(version, status, run.sentence))
    said = bisect_version.conclusion(checked)
    return dataclasses.replace(report, releases=runs, regression=f"{said[:1].upper()}{said[1:]}.")
