"""What a campaign comes to, in words that the terminal and the page share."""

from __future__ import annotations

from pytest_regional._text import plural, printable
from pytest_regional.fuzz.budget import duration
from pytest_regional.fuzz.findings.provenance import too_many
from pytest_regional.fuzz.workers.records import WorkerRecord
from pytest_regional.fuzz.workers.status import CampaignStatus

#: Seconds after which it is said that a worker showed no sign of life; it shows one every five.
SILENT = 15.0


def summary_line(status: CampaignStatus) -> str:
    """Return what a campaign comes to in one line; one without new programs checks others again."""
    if status.plan.programs == 0:
        return f"{plural(len(status.findings), 'finding')}, {plural(status.postponed, 'program')} still to be checked"
    totals = status.totals
    parts = [
        plural(totals.examples, "program"),
        *([f"{status.a_minute():.0f} a minute"] if status.working else []),
        plural(status.keys, "coverage key"),
        plural(len(status.findings), "finding"),
    ]
    parts += [f"{plural(len(status.crashes), 'worker')} died"] if status.crashes else []
    parts += [f"{plural(len(status.reducing), 'failure')} being reduced"] if status.reducing else []
    parts += [f"{plural(status.postponed, 'failure')} left for later"] if status.postponed else []
    parts += [f"{totals.skipped_known} skipped as known"] if totals.skipped_known else []
    parts += [f"{totals.refused.total()} refused"] if totals.refused else []
    parts += [f"{totals.unclaimed.total()} not supported"] if totals.unclaimed else []
    return ", ".join(parts)


def warnings_of(status: CampaignStatus) -> list[str]:
    """Return what is wrong with a campaign: eager refuses many programs, so that their generator is at fault."""
    totals = status.totals
    wrong = too_many(totals.refused, totals.examples)
    return [printable(wrong)] if wrong else []


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
    silent = status.read - worker.alive
    sign = f"; no sign of life for {duration(silent)}" if silent >= SILENT else ""
    return f"{checked}, {what}, for {duration(max(status.read - task.since, 0.0))}{sign}"


def share(count: int, of: int) -> str:
    """Return a count, and which share of all it is."""
    return f"{count} ({count / of:.1%})" if of else str(count)


__all__ = ["doing", "share", "summary_line", "warnings_of"]
