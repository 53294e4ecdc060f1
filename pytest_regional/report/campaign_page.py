"""A shared campaign as one HTML page, which loads itself again while the campaign goes on; no script, no network."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pytest_regional._files import write_whole
from pytest_regional._text import printable
from pytest_regional.fuzz.budget import duration
from pytest_regional.fuzz.workers.status import CampaignStatus
from pytest_regional.report.campaign_words import doing, share, summary_line, warnings_of

#: Seconds after which the page loads itself again.
EVERY = 5

#: Points of a curve, at most; findings, crashes and workers that are listed.
_MOST_POINTS, _MOST_ROWS = 60, 200

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 240, 64, 708, 12, 196


@dataclass(frozen=True)
class Tick:
    """A line of a chart's grid: where, and what is written there."""

    at: float
    text: str


@dataclass(frozen=True)
class Mark:
    """A point of its own in a chart: where, and what it says."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A curve, as the template draws it."""

    id: str
    title: str
    across_unit: str
    across: Sequence[Tick]
    up: Sequence[Tick]
    points: str
    rows: Sequence[tuple[str, str]]
    marks: Sequence[Mark] = ()
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    right: int = _RIGHT
    top: int = _TOP
    bottom: int = _BOTTOM


def write_campaign_page(status: CampaignStatus, path: Path, *, live: bool) -> None:
    """Write the page of a campaign.

    Args:
        status: how the campaign is.
        path: of the page.
        live: whether it loads itself again.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(path, campaign_page(status, live=live).encode())


def campaign_page(status: CampaignStatus, *, live: bool) -> str:
    """Return the page; all that comes from the store is escaped."""
    import jinja2

    folder = Path(__file__).with_name("page")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    totals = status.totals
    findings = [
        {
            "name": printable(row.name),
            "title": printable(row.title),
            "size": row.size,
            "ago": duration(max(status.read - row.found, 0.0)),
            "hits": totals.hits[row.name],
            "results": row.results,
        }
        for row in sorted(status.findings, key=lambda row: -row.found)[:_MOST_ROWS]
    ]
    return environment.get_template("campaign.html.j2").render(
        style=(folder / "report.css").read_text(encoding="utf-8"),
        every=EVERY if live else 0,
        summary=summary_line(status),
        warnings=warnings_of(status),
        read=datetime.fromtimestamp(status.read, timezone.utc).isoformat(timespec="seconds"),
        plan=status.plan,
        parts=_parts(status),
        charts=charts_of(status),
        findings=findings,
        reducing=[printable(one) for one in status.reducing],
        postponed=status.postponed,
        crashes=[(one.name, one.environment, printable(one.ending)) for one in status.crashes[-_MOST_ROWS:]],
        workers=[
            (
                name,
                worker.environment,
                ", ".join(f"{package} {version}" for package, version in worker.versions.items()),
                doing(worker, status),
            )
            for name, worker in list(status.working.items())[:_MOST_ROWS]
        ],
        over=len(status.workers) - len(status.working),
    )


def _parts(status: CampaignStatus) -> list[tuple[str, ...]]:
    return [
        (
            name,
            str(one.examples),
            str(one.skipped_known),
            share(one.refused.total(), one.examples),
            share(one.unclaimed.total(), one.examples + one.unclaimed.total()),
            str(one.left_to_others),
        )
        for name, one in status.by_part().items()
    ]


def charts_of(status: CampaignStatus) -> list[Chart]:
    """Return the curves of a campaign: programs a minute, and coverage keys, with findings as marks on it."""
    if not status.done:
        return []
    begin = min((worker.begun for worker in status.workers.values()), default=status.done[0].finished)
    end = max(status.done[-1].finished, begin + 1.0)
    keys = [(begin, 0), *status.coverage()]
    if len(keys) > _MOST_POINTS:
        keys = [keys[round(place * (len(keys) - 1) / (_MOST_POINTS - 1))] for place in range(_MOST_POINTS)]
    marks = [(row.found, printable(row.title)) for row in status.findings if begin <= row.found <= end]
    return [
        _chart("rate", "Programs a minute", _rates(status, begin, end), begin, end),
        _chart("coverage", "Coverage keys, and findings (points)", keys, begin, end, marks),
    ]


def _rates(status: CampaignStatus, begin: float, end: float) -> list[tuple[float, float]]:
    """Return programs a minute in equal stretches of time, as long as a batch takes at least."""
    count = max(1, min(_MOST_POINTS, len(status.done) // 2, int((end - begin) / 20)))
    step = (end - begin) / count
    programs = [0] * count
    for batch in status.done:
        programs[min(count - 1, max(0, int((batch.finished - begin) / step)))] += batch.examples
    return [(begin + (place + 0.5) * step, 60 * number / step) for place, number in enumerate(programs)]


def _chart(
    name: str,
    title: str,
    values: Sequence[tuple[float, float]],
    begin: float,
    end: float,
    marks: Sequence[tuple[float, str]] = (),
) -> Chart:
    unit, seconds = ("hours", 3600.0) if end - begin > 7200 else ("minutes", 60.0)
    steps_up = ticks(max(value for _, value in values))
    highest = steps_up[-1]

    def x(when: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * (when - begin) / (end - begin), 1)

    def y(value: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP) * value / highest, 1)

    steps_across = [one for one in ticks((end - begin) / seconds) if one * seconds <= end - begin]
    return Chart(
        name,
        title,
        unit,
        [Tick(x(begin + one * seconds), f"{one:g}") for one in steps_across],
        [Tick(y(one), f"{one:g}") for one in steps_up],
        " ".join(f"{x(when)},{y(value)}" for when, value in values),
        [(f"{(when - begin) / seconds:.1f}", f"{value:.0f}") for when, value in values],
        [Mark(x(when), y(_between(values, when)), text) for when, text in marks],
    )


def _between(values: Sequence[tuple[float, float]], when: float) -> float:
    """Return the height of the curve at a time, on the straight line between two values."""
    place = bisect.bisect_right(values, when, key=lambda one: one[0])
    if place in (0, len(values)):
        return values[max(place - 1, 0)][1]
    (before, low), (after, high) = values[place - 1], values[place]
    return low + (high - low) * (when - before) / (after - before)


def ticks(highest: float) -> list[float]:
    """Return round numbers from 0 on, the last of which is not below ``highest``: four or more steps."""
    if highest <= 0:
        return [0.0, 1.0]
    size = 10.0 ** math.floor(math.log10(highest / 4))
    step = next(size * one for one in (1, 2, 5, 10) if highest / (size * one) <= 6)
    return [round(step * place, 10) for place in range(math.ceil(highest / step) + 1)]


__all__ = ["EVERY", "campaign_page", "charts_of", "write_campaign_page"]
