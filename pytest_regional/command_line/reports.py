"""``compare`` and ``merge``: what became of reports that ``--regional-report=FILE.json`` wrote."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_regional._phase_names import CLOCK_NAMES
from pytest_regional._text import plural
from pytest_regional.command_line.targets import UsageError
from pytest_regional.report import github, history
from pytest_regional.report.comparison import Comparison, compared
from pytest_regional.report.document import RunReport, merged
from pytest_regional.report.history import TimedRun
from pytest_regional.report.outputs import ENDINGS, HISTORY, OutputError, Outputs, outputs_of, write_report
from pytest_regional.report.reading import ReportError
from pytest_regional.report.slower import NEEDED, Limit, LimitError, slower_times

_COMPARE = "show what changed from one run to the next: new failures, counters, slower compiles"
_COMPARED = (
    "reports, or histories that --regional-report=FILE.jsonl appends to, the earliest first: the last run is compared "
    "with the report before it, and its compile times with all earlier runs"
)
_MERGE = "make one report of those of several machines or shards"


def add_compare(commands: Any) -> None:
    """Add ``compare`` to the commands of a parser."""
    parser = commands.add_parser(
        "compare",
        help=_COMPARE,
        description=f"{_COMPARE.capitalize()}. Exit status 1: a test ends badly that did not, or --fail-slower; 2: a "
        "file that cannot be read, that is no report, or that holds no test where the earlier one does.",
    )
    parser.add_argument("runs", metavar="FILE", nargs="+", type=Path, help=_COMPARED)
    parser.add_argument(
        "--slower", metavar="RATIO", type=float, default=1.5, help="ratio from which a longer compile is reported (1.5)"
    )
    parser.add_argument(
        "--fail-slower",
        metavar="[PHASE:]PERCENT",
        action="append",
        default=[],
        help="exit with 1 where compile times, or those of a phase, are certainly slower by more than this, such as "
        "20% or passes:20%; may be given several times",
    )
    parser.add_argument(
        "--clock",
        choices=CLOCK_NAMES,
        default=CLOCK_NAMES[0],
        help="compile times to compare: those that passed (wall, the default), or what compiles took of processors, "
        "with their compilers (cpu), which other load of the machine changes less",
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
    limits = _limits(asked.fail_slower)
    timed, reports = _timed(asked.runs)
    if len(timed) < 2:
        raise UsageError(f"{', '.join(map(str, asked.runs))}: one run, and there is none to compare it with.")
    times = slower_times(timed[:-1], timed[-1], asked.clock)
    if limits and not times.phases:
        said = "; ".join(times.notes) or "no run has them, see --regional-report"
        raise UsageError(f"--fail-slower: compile times cannot be compared: {said}.")
    for limit in limits:
        if not times.decides(limit):
            raise UsageError(f"--fail-slower={limit}: the noise of these times is not known without {NEEDED}.")
    lines, failures, count = [*times.lines()], [], len(timed[-1].tests)
    if len(reports) > 1 and asked.runs[-1].suffix != HISTORY:
        found = _compared(reports[-2], reports[-1], asked.slower)
        lines, failures, count = [*found.lines(), *lines], found.new_failures, len(reports[-1][1].tests)
    beyond = {limit: times.beyond(limit) for limit in limits}
    for limit, rows in beyond.items():
        if rows:
            lines.append(f"slower than --fail-slower={limit} allows:")
            lines += [f"  {row}" for row in rows]
    print("\n".join(lines) if lines else f"no difference in {plural(count, 'test')}")
    return 1 if failures or any(beyond.values()) else 0


def _compared(earlier: tuple[Path, RunReport], later: tuple[Path, RunReport], ratio: float) -> Comparison:
    (old_path, old), (new_path, new) = earlier, later
    if old.tests and not new.tests:
        raise UsageError(f"{new_path} holds no test, and {old_path} {plural(len(old.tests), 'test')}: nothing ran.")
    return compared(old, new, ratio=ratio)


def _limits(texts: Sequence[str]) -> list[Limit]:
    try:
        return [Limit.of(text) for text in texts]
    except LimitError as error:
        raise UsageError(f"--fail-slower={error}.") from error


def _timed(paths: Sequence[Path]) -> tuple[list[TimedRun], list[tuple[Path, RunReport]]]:
    """Return the compile times of all runs in ``paths``, and the reports among them."""
    timed: list[TimedRun] = []
    reports: list[tuple[Path, RunReport]] = []
    for path in paths:
        if path.suffix == HISTORY:
            timed += _histories(path)
        else:
            (report,) = _read([path])
            reports.append((path, report))
            timed.append(TimedRun.of(report))
    return timed, reports


def _histories(path: Path) -> list[TimedRun]:
    try:
        return history.read(path)
    except ReportError as error:
        raise UsageError(f"{error}.") from error


def _merge(asked: argparse.Namespace) -> int:
    outputs = _outputs(asked.output)
    reports = _read(asked.reports)
    whole = merged(reports)
    try:
        for path in outputs.files:
            write_report(whole, path)
        if outputs.github:
            github.append_summary(whole, os.environ)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}.") from error
    doubled = sum(len(report.tests) for report in reports) - len(whole.tests)
    note = f"; {plural(doubled, 'test')} is in several, and the worst ending was kept" if doubled else ""
    print(f"{asked.output}: {plural(len(whole.tests), 'test')} of {plural(len(reports), 'report')}{note}")
    for line in github.annotations_of(whole.tests) if outputs.github else ():
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
    except ReportError as error:
        raise UsageError(f"{error}.") from error
    for path, report in zip(paths, reports, strict=True):
        if report.unfinished:
            raise UsageError(f"{path} is of a run that did not finish, so it cannot be used: {report.unfinished}.")
    return reports
