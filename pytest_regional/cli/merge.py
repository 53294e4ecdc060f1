"""``merge``: one report of several that ``--regional-report=FILE.json`` wrote."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pytest_regional._base.documents import DocumentError
from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import plural
from pytest_regional.cli.targets import UsageError
from pytest_regional.report import ci, step_summary
from pytest_regional.report.document import RunReport, merged
from pytest_regional.report.outputs import ENDINGS, outputs_of, write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = f"{parser.description} Of a test that is in several, the worst ending is kept."
    parser.add_argument("reports", metavar="FILE.json", nargs="+", type=Path, help="report of a run")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help=f"what to write the result to, as --regional-report takes it: FILES whose names end in "
        f"{', '.join(ENDINGS)}, github, gitlab",
    )


def run(asked: argparse.Namespace) -> int:
    """Write the merged report; return the exit status."""
    try:
        outputs = outputs_of(asked.output, Path(), {})
    except RegionalValueError as error:
        raise UsageError(f"--output={asked.output}: {error}.") from error
    if not outputs or outputs.directories:
        raise UsageError(f"--output={asked.output}: expected a file: reports do not hold what failed tests leave.")
    try:
        reports = [RunReport.read(path) for path in asked.reports]
    except DocumentError as error:
        raise UsageError(f"{error}.") from error
    for path, report in zip(asked.reports, reports, strict=True):
        if report.unfinished:
            raise UsageError(f"{path} is of a run that did not finish, so it cannot be used: {report.unfinished}.")
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
