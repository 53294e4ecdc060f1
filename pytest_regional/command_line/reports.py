"""``compare`` and ``merge``: what became of reports that ``--regional-report=FILE.json`` wrote."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_regional._documents import DocumentError
from pytest_regional._text import plural
from pytest_regional.command_line.targets import UsageError
from pytest_regional.report import ci, step_summary
from pytest_regional.report.comparison import compared
from pytest_regional.report.document import RunReport, merged
from pytest_regional.report.outputs import ENDINGS, OutputError, Outputs, outputs_of, write_report

_COMPARE = "show what changed from one run to the next: new failures, counters, slower compiles"
_MERGE = "make one report of those of several machines or shards"


def add_compare(commands: Any) -> None:
    """Add ``compare`` to the commands of a parser."""
    parser = commands.add_parser(
        "compare",
        help=_COMPARE,
        description=f"{_COMPARE.capitalize()}. Exit status 1: a test ends badly that did not; 2: a file that "
        "cannot be read, that is no report, or that holds no test where the earlier one does.",
    )
    parser.add_argument("old", metavar="OLD.json", type=Path, help="report of the earlier run")
    parser.add_argument("new", metavar="NEW.json", type=Path, help="report of the later run")
    parser.add_argument(
        "--slower", metavar="RATIO", type=float, default=1.5, help="ratio from which a longer compile is reported (1.5)"
    )
    parser.set_defaults(run=_compare)


def add_merge(commands: Any) -> None:
    """Add ``merge`` to the commands of a parser."""
    parser = commands.add_parser(
        "merge",
        help=_MERGE,
        description=f"{_MERGE.capitalize()}. Of a test that is in several, the worst ending is kept.",
    )
    parser.add_argument("reports", metavar="FILE.json", nargs="+", type=Path, help="report of a run")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help=f"what to write the result to, as --regional-report takes it: FILES whose names end in "
        f"{', '.join(ENDINGS)}, github, gitlab",
    )
    parser.set_defaults(run=_merge)


def _compare(asked: argparse.Namespace) -> int:
    if not asked.slower > 1:
        raise UsageError(f"--slower={asked.slower:g}: expected a number above 1, such as 1.5 or 2.")
    old, new = _read([asked.old, asked.new])
    if old.tests and not new.tests:
        raise UsageError(f"{asked.new} holds no test, and {asked.old} {plural(len(old.tests), 'test')}: nothing ran.")
    found = compared(old, new, ratio=asked.slower)
    print("\n".join(found.lines()) or f"no difference in {plural(len(new.tests), 'test')}")
    return 1 if found.new_failures else 0


def _merge(asked: argparse.Namespace) -> int:
    outputs = _outputs(asked.output)
    reports = _read(asked.reports)
    whole = merged(reports)
    try:
        for path in outputs.files:
            write_report(whole, path)
        if outputs.github:
            step_summary.append_summary(whole, os.environ)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}.") from error
    doubled = sum(len(report.tests) for report in reports) - len(whole.tests)
    note = f"; {plural(doubled, 'test')} is in several, and the worst ending was kept" if doubled else ""
    print(f"{asked.output}: {plural(len(whole.tests), 'test')} of {plural(len(reports), 'report')}{note}")
    for line in ci.annotations_of(whole.tests) if outputs.github else ():
        print(line)
    return 0


def _outputs(value: str) -> Outputs:
    try:
        outputs = outputs_of(value, Path(), {})
    except OutputError as error:
        raise UsageError(f"--output={value}: {error}.") from error
    if not outputs or outputs.directories:
        raise UsageError(f"--output={value}: expected a file: reports do not hold what failed tests leave.")
    return outputs


def _read(paths: Sequence[Path]) -> list[RunReport]:
    try:
        reports = [RunReport.read(path) for path in paths]
    except DocumentError as error:
        raise UsageError(f"{error}.") from error
    for path, report in zip(paths, reports, strict=True):
        if report.unfinished:
            raise UsageError(f"{path} is of a run that did not finish, so it cannot be used: {report.unfinished}.")
    return reports
