"""A shared campaign on the terminal, while it goes on: one line for each worker, or a line now and then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pytest_regional._text import plural, printable
from pytest_regional.fuzz.budget import duration
from pytest_regional.fuzz.workers.records import WorkerRecord
from pytest_regional.fuzz.workers.status import REFUSED_AT_MOST, CampaignStatus, CrashRow, FoundRow

#: Seconds between two lines where the output is no terminal.
EVERY = 30.0

#: Workers that are shown one by one.
_MOST_LINES = 30


class CampaignScreen:
    """Shows a campaign: live on a terminal, by lines elsewhere.

    Args:
        console: where to.
        seconds: how long the campaign takes, for the bar; None for as long as there are programs.
        every: seconds between two lines where that is no terminal.
    """

    def __init__(self, console: Console, seconds: float | None, every: float = EVERY) -> None:
        self._console, self._seconds, self._every = console, seconds, every
        self._begun = self._line = time.monotonic()
        self._live: Live | None = None
        self._warned = False

    @contextlib.contextmanager
    def shown(self) -> Iterator[CampaignScreen]:
        """Show what comes until the context ends."""
        if not self._console.is_terminal:
            yield self
            return
        with Live(console=self._console, refresh_per_second=4, transient=True) as self._live:
            yield self
        self._live = None

    def shows(self, status: CampaignStatus) -> None:
        """Show how the campaign is."""
        if status.refused_share > REFUSED_AT_MOST and status.totals.refused.total() > 2 and not self._warned:
            self._warned = True
            self.says(f"warning: eager refuses {status.refused_share:.1%} of the programs: {_first(status)}")
        if self._live is not None:
            self._live.update(self.picture(status))
        elif time.monotonic() - self._line >= self._every:
            self._line = time.monotonic()
            self.says(f"{duration(time.monotonic() - self._begun)}: {summary_line(status)}")

    def picture(self, status: CampaignStatus) -> RenderableType:
        """Return the bar, a line for each worker, and the sums."""
        table = Table.grid(padding=(0, 2))
        for name, worker in list(status.working.items())[:_MOST_LINES]:
            table.add_row(Text(name), Text(doing(worker, status)))
        more = len(status.working) - _MOST_LINES
        lines: list[RenderableType] = [ProgressBar(total=1.0, completed=self._done(status), width=60), table]
        if more > 0:
            lines.append(Text(f"and {plural(more, 'worker')} more"))
        return Group(*lines, Text(summary_line(status)))

    def _done(self, status: CampaignStatus) -> float:
        if self._seconds is not None:
            return min(1.0, (time.monotonic() - self._begun) / self._seconds)
        if status.plan.programs is None:
            return 0.0
        return min(1.0, status.checked / (status.plan.programs * len(status.plan.environments)))

    def found(self, row: FoundRow, script: Path) -> None:
        """Show a new finding."""
        self.says(f"new finding: {row.title}\n    {script}")

    def crashed(self, row: CrashRow, program: Path) -> None:
        """Show that a worker died of a program."""
        self.says(f"a worker died, {row.ending}, of the program in\n    {program}")

    def says(self, text: str) -> None:
        """Show a line of text."""
        self._console.print(Text(printable(text)), soft_wrap=True)


def summary_line(status: CampaignStatus) -> str:
    """Return what a campaign comes to in one line."""
    totals = status.totals
    parts = [
        plural(totals.examples, "program"),
        f"{status.a_minute():.0f} a minute",
        plural(status.keys, "coverage key"),
        plural(len(status.findings), "finding"),
    ]
    parts += [f"{plural(len(status.crashes), 'worker')} died"] if status.crashes else []
    parts += [f"{len(status.reducing)} being reduced"] if status.reducing else []
    parts += [f"{totals.skipped_known} skipped as known"] if totals.skipped_known else []
    parts += [f"{totals.refused.total()} refused"] if totals.refused else []
    parts += [f"{totals.unclaimed.total()} not supported"] if totals.unclaimed else []
    return ", ".join(parts)


def doing(worker: WorkerRecord, status: CampaignStatus) -> str:
    """Return in words what a worker does."""
    checked = plural(sum(one.examples for one in worker.totals.values()), "program")
    task = worker.task
    part = status.plan.parts[task.part].name if task.part < len(status.plan.parts) else "?"
    if task.kind == "waiting":
        what = "waits"
    elif task.kind == "batch" and task.batch is not None:
        what = f"{part}: batch {task.batch.number}, program {task.batch.begin + 1}"
    elif task.kind == "postponed":
        what = f"{part}: a failure that was left"
    else:
        what = f"finding {task.name}"
    return f"{checked}, {what}, for {duration(max(status.read - task.since, 0.0))}"


def _first(status: CampaignStatus) -> str:
    return next((reason for reason, _ in status.totals.refused.most_common(1)), "")


__all__ = ["CampaignScreen", "doing", "summary_line"]
