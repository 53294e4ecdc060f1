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
from pytest_regional.fuzz.workers.status import CampaignStatus, CrashRow, FoundRow
from pytest_regional.report.campaign_page import EVERY as PAGE_EVERY
from pytest_regional.report.campaign_page import write_campaign_page
from pytest_regional.report.campaign_words import doing, summary_line, warnings_of

#: Seconds between two lines where the output is no terminal.
EVERY = 30.0

#: Workers that are shown one by one.
_MOST_LINES = 30


class CampaignScreen:
    """Shows a campaign: live on a terminal, by lines elsewhere.

    Args:
        console: where to.
        seconds: how long the campaign takes, for the bar; None for as long as there are programs.
        page: an HTML page that is written as well.
        every: seconds between two lines where that is no terminal.
    """

    def __init__(self, console: Console, seconds: float | None, page: Path | None = None, every: float = EVERY) -> None:
        self._console, self._seconds, self._page, self._every = console, seconds, page, every
        self._written = 0.0
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
        if self._page is not None and time.monotonic() - self._written >= PAGE_EVERY:
            self._written = time.monotonic()
            self._write_page(status, self._page)
        if not self._warned and (lines := warnings_of(status)):
            self._warned = True
            for line in lines:
                self.says(f"warning: {line}")
        if self._live is not None:
            self._live.update(self.picture(status))
        elif time.monotonic() - self._line >= self._every:
            self._line = time.monotonic()
            self.says(f"{duration(time.monotonic() - self._begun)}: {summary_line(status)}")

    def _write_page(self, status: CampaignStatus, page: Path) -> None:
        """Write the page; a campaign does not end because that fails."""
        try:
            write_campaign_page(status, page, live=True)
        except OSError as error:
            self._page = None
            self.says(f"warning: {page} cannot be written any more: {error.strerror}")

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

    def crashed(self, row: CrashRow, part: str, script: Path) -> None:
        """Show that a worker died of a program."""
        self.says(f"a worker {row.ending} while it checked a program ({part})\n    {script}")

    def says(self, text: str) -> None:
        """Show a line of text."""
        self._console.print(Text(printable(text)), soft_wrap=True)


__all__ = ["CampaignScreen"]
