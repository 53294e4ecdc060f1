"""What a store says of its campaign: how far it is, what it found, who works. Imports no torch."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_regional.fuzz.findings.strict_json import Field, MalformedError
from pytest_regional.fuzz.store import Entry, Store
from pytest_regional.fuzz.workers.entries import read_entry
from pytest_regional.fuzz.workers.plan import Plan
from pytest_regional.fuzz.workers.records import Totals, WorkerRecord, sum_of, time_in


@dataclass(frozen=True)
class FoundRow:
    """A finding of the campaign.

    Attributes:
        name: of its files.
        title: one line that says what happens.
        size: steps of its program.
        environment: where it was found.
        found: when, in seconds since the epoch.
        results: by environment, what came of it there: ``still fails``, ``fixed`` or ``error``.
    """

    name: str
    title: str
    size: int
    environment: str
    found: float
    results: Mapping[str, str]


@dataclass(frozen=True)
class CrashRow:
    """A program that a worker died of.

    Attributes:
        name: of its entry.
        environment: of the worker.
        ending: how the worker ended.
        part: the number of the part.
        kind: what the worker was doing: ``batch`` for a program that was drawn.
        versions: of torch and triton.
        program: as plain data.
    """

    name: str
    environment: str
    ending: str
    part: int
    kind: str
    versions: Mapping[str, str]
    program: Any


@dataclass(frozen=True)
class DoneBatch:
    """A batch all of whose programs are done: when, how many were checked last, and the keys that were new."""

    finished: float
    examples: int
    keys: frozenset[str]


@dataclass(frozen=True)
class CampaignStatus:
    """How a campaign is.

    Attributes:
        plan: what is fuzzed.
        workers: by name, all workers there ever were.
        findings: in order of discovery.
        crashes: of workers.
        done: batches, by the time of their end.
        reducing: signatures of failures that are being reduced.
        postponed: how many failures wait for such a reduction.
        read: when this was read, in seconds since the epoch.
    """

    plan: Plan
    workers: Mapping[str, WorkerRecord]
    findings: tuple[FoundRow, ...]
    crashes: tuple[CrashRow, ...]
    done: tuple[DoneBatch, ...]
    reducing: tuple[str, ...]
    postponed: int
    read: float = field(default_factory=time.time)

    @property
    def totals(self) -> Totals:
        """What came of all programs."""
        return sum_of(one for worker in self.workers.values() for one in worker.totals.values())

    @property
    def checked(self) -> int:
        """How many programs are done: checked, skipped, or not supported."""
        totals = self.totals
        return totals.examples + totals.skipped_known + totals.unclaimed.total()

    def by_part(self) -> dict[str, Totals]:
        """Return what came of the programs of each part."""
        names = [part.name for part in self.plan.parts]
        return {
            name: sum_of(worker.totals[name] for worker in self.workers.values() if name in worker.totals)
            for name in names
        }

    @property
    def working(self) -> dict[str, WorkerRecord]:
        """The workers that are not over, by name."""
        return {name: worker for name, worker in self.workers.items() if not worker.is_over}

    @property
    def keys(self) -> int:
        """How many coverage keys were reached."""
        return len(frozenset().union(*(batch.keys for batch in self.done)))

    def coverage(self) -> list[tuple[float, int]]:
        """Return times and how many coverage keys were reached by then."""
        reached: set[str] = set()
        curve = []
        for batch in self.done:
            reached |= batch.keys
            curve.append((batch.finished, len(reached)))
        return curve

    def a_minute(self) -> float:
        """Return the programs a minute of the workers that work now, each over the time that it has worked."""
        totals = [sum_of(worker.totals.values()) for worker in self.working.values()]
        return sum(60.0 * one.examples / one.seconds for one in totals if one.seconds)


class StatusReader:
    """Reads a campaign's status again and again, each time only what changed.

    Args:
        store: holds the campaign.
        plan: of the campaign.
    """

    _TABLES = ("workers", "findings", "results", "crashes", "batches", "claims", "postponed")

    def __init__(self, store: Store, plan: Plan) -> None:
        self._store, self._plan = store, plan
        self._entries: dict[str, dict[str, Entry]] = {table: {} for table in self._TABLES}

    def read(self) -> CampaignStatus:
        """Return the status now."""
        for table, entries in self._entries.items():
            known = {name: entry.version for name, entry in entries.items()}
            there = self._store.names(table)
            entries.update(self._store.entries(table, known))
            for name in entries.keys() - there.keys():
                entries.pop(name)
        at = self._entries
        parts = len(self._plan.parts)
        workers = {name: read_entry(WorkerRecord.read, entry) for name, entry in at["workers"].items()}
        done = [one for entry in at["batches"].values() if (one := read_entry(_done, entry)) is not None]
        results = _results(at["results"].values())
        found = [_found(name, entry, results.get(name, {})) for name, entry in at["findings"].items()]
        crashes = [read_entry(functools.partial(_crash, name), entry) for name, entry in at["crashes"].items()]
        return CampaignStatus(
            self._plan,
            {name: worker for name, worker in workers.items() if worker is not None},
            tuple(sorted((one for one in found if one is not None), key=lambda one: one.found)),
            tuple(one for one in crashes if one is not None and one.part < parts),
            tuple(sorted(done, key=lambda one: one.finished)),
            tuple(sorted(filter(None, (read_entry(_reducing, entry) for entry in at["claims"].values())))),
            len(at["postponed"]),
        )

    def finding(self, name: str) -> Any:
        """Return the data of a finding, as a worker kept it."""
        return self._entries["findings"][name].data


def _done(document: Field) -> DoneBatch | None:
    at = document.mapping()
    if not at["done"].flag():
        return None
    keys = frozenset(one.line(1000) for one in at["keys"].items(1_000_000))
    return DoneBatch(time_in(at["finished"]), at["examples"].integer(0, 10_000), keys)


def _reducing(document: Field) -> str | None:
    at = document.mapping()
    return at["signature"].text() if at["holder"].or_none(Field.line) else None


def _found(name: str, entry: Entry, results: Mapping[str, str]) -> FoundRow | None:
    def row(document: Field) -> FoundRow:
        at = document.mapping()
        environment = at["environment"].line()
        return FoundRow(
            name,
            at["title"].text(),
            at["size"].integer(0, 10_000),
            environment,
            time_in(at["found"]),
            {environment: "still fails", **results},
        )

    return read_entry(row, entry)


def _crash(name: str, document: Field) -> CrashRow:
    at = document.mapping()
    return CrashRow(
        name,
        at["environment"].line(),
        at["ending"].text(),
        at["part"].integer(0, 1000),
        at["kind"].line(),
        {package: one.line() for package, one in at["versions"].mapping(100).items()},
        at["program"].value,
    )


def _results(entries: Iterable[Entry]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        try:
            at = Field(entry.data).mapping()
            if "outcome" in at:
                found.setdefault(at["finding"].line(), {})[at["environment"].line()] = at["outcome"].line()
        except (MalformedError, KeyError):
            continue
    return found


__all__ = ["CampaignStatus", "CrashRow", "FoundRow", "StatusReader"]
