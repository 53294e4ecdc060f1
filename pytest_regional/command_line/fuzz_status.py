"""``fuzz --status``: what a store says of its campaign, in the terminal and as a page; nothing is written into it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pytest_regional._text import printable
from pytest_regional.command_line.targets import UsageError
from pytest_regional.fuzz.budget import duration
from pytest_regional.fuzz.store import Store
from pytest_regional.fuzz.workers.plan import joined
from pytest_regional.fuzz.workers.status import CampaignStatus, StatusReader
from pytest_regional.report.campaign_page import EVERY, write_campaign_page
from pytest_regional.report.campaign_words import doing, share, summary_line, warnings_of

#: Findings that are listed, the newest.
_MOST_FINDINGS = 50


def show_status(store: Store, page: Path | None, *, watch: bool) -> int:
    """Show the campaign of a store, once or until Ctrl-C; return the exit status.

    Args:
        store: holds the campaign.
        page: is written, too.
        watch: whether to go on.

    Raises:
        UsageError: the page cannot be written.
        PlanError: there is no campaign.
    """
    console = Console()
    reader = StatusReader(store, joined(store, None))
    if not watch:
        status = reader.read()
        write_page(status, page, live=False)
        console.print(picture(status))
        return 0
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, refresh_per_second=1) as live:
        while True:
            status = reader.read()
            write_page(status, page, live=bool(status.working))
            live.update(picture(status))
            time.sleep(EVERY)
    write_page(reader.read(), page, live=False)
    return 0


def write_page(status: CampaignStatus, page: Path | None, *, live: bool) -> None:
    """Write the page, if one is wanted.

    Raises:
        UsageError: it cannot be written.
    """
    if page is None:
        return
    try:
        write_campaign_page(status, page, live=live)
    except OSError as error:
        raise UsageError(f"--page={page}: it cannot be written: {error.strerror}.") from error


def picture(status: CampaignStatus) -> RenderableType:
    """Return what is shown: sums, parts, workers, findings, crashes."""
    shown: list[RenderableType] = [
        _text(summary_line(status)),
        *(_text(f"warning: {one}") for one in warnings_of(status)),
    ]
    shown.append(_parts(status))
    if status.working:
        shown.append(_workers(status))
    if status.findings:
        shown.append(_findings(status))
    shown += [_text(f"{one.name} ({one.environment}) died of a program, {one.ending}") for one in status.crashes[-10:]]
    return Group(*shown)


def _parts(status: CampaignStatus) -> Table:
    table = _table("part", "programs", "skipped as known", "refused by eager", "not supported")
    for name, one in status.by_part().items():
        unclaimed = one.unclaimed.total()
        counts = share(one.refused.total(), one.examples), share(unclaimed, one.examples + unclaimed)
        table.add_row(_text(name), str(one.examples), str(one.skipped_known), *counts)
    return table


def _workers(status: CampaignStatus) -> Table:
    table = _table("worker", "environment", "versions", "what it does")
    for name, worker in status.working.items():
        versions = ", ".join(f"{package} {version}" for package, version in worker.versions.items())
        table.add_row(_text(name), _text(worker.environment), _text(versions), _text(doing(worker, status)))
    return table


def _findings(status: CampaignStatus) -> Table:
    environments = status.plan.environments if len(status.plan.environments) > 1 else ()
    table = _table("found", "what happens", "steps", "programs", *environments)
    totals = status.totals
    for row in sorted(status.findings, key=lambda one: -one.found)[:_MOST_FINDINGS]:
        ago = duration(max(status.read - row.found, 0.0))
        results = [_text(row.results.get(name, "not checked yet")) for name in environments]
        table.add_row(f"{ago} ago", _text(row.title), str(row.size), str(totals.hits[row.name]), *results)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(_text(column), overflow="fold")
    return table


def _text(text: str) -> Text:
    """Return text as it is: no markup of rich's, and nothing that a terminal obeys."""
    return Text(printable(" ".join(text.splitlines())))


__all__ = ["picture", "show_status", "write_page"]
