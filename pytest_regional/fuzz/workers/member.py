"""A worker's place in a campaign: how it takes batches, failures and findings from the store, and leaves them there.

Every change is a compare-and-set of one entry (:mod:`pytest_regional.fuzz.store`), so it does not matter who makes it,
or how often it is tried. Three rules keep what a dead worker had from being lost or done twice:

- A worker says in its own record what it is about to take, and takes it then. So whoever settles a dead worker's record
  (:mod:`~pytest_regional.fuzz.workers.deaths`) knows what to look at, and what the record says is no more than what the
  worker may have.
- What is taken names its holder. Only what a dead worker holds is taken from it.
- A record that was declared dead has another version: a worker that was only slow cannot write it again, notices, and
  stops (:class:`DeclaredDeadError`).
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pytest_regional._errors import RegionalError
from pytest_regional.fuzz.findings.strict_json import as_json
from pytest_regional.fuzz.store import Entry, Store
from pytest_regional.fuzz.workers.deaths import settle_holdings
from pytest_regional.fuzz.workers.entries import (
    Left,
    batch_name,
    claim_name,
    count_in,
    counter_name,
    holder_in,
    leave,
    left_in,
    number_in,
    number_token,
    open_batch_in,
    read_entry,
)
from pytest_regional.fuzz.workers.plan import Batch, Plan
from pytest_regional.fuzz.workers.records import Task, Totals, WorkerRecord


class DeclaredDeadError(RegionalError, RuntimeError):
    """Others took this worker for dead, as it was silent for long, and have taken over what it had."""


class Member:
    """A worker's place in a campaign.

    Args:
        store: holds the campaign.
        plan: of the campaign.
        name: of its record, which nobody else has or had.
        record: how it begins.
    """

    def __init__(self, store: Store, plan: Plan, name: str, record: WorkerRecord) -> None:
        self.store, self.plan, self.name = store, plan, name
        self._record, self._version = record, 0
        self._lock = threading.Lock()
        self._seen: dict[str, dict[str, Entry]] = {}
        self._postponed: set[tuple[str, int]] = set()
        self._held: tuple[str, int] | None = None
        self._none_is_left = False
        self._change()

    @property
    def environment(self) -> str:
        """The name of its Python environment."""
        return self._record.environment

    @property
    def is_over(self) -> bool:
        """Whether its record says that it ended."""
        return self._record.is_over

    def beat(self) -> None:
        """Show that it lives.

        Raises:
            DeclaredDeadError: too late.
        """
        with self._lock:
            beat = self._record.beat + 1
        self._change(beat=beat)

    def does(self, task: Task, totals: Mapping[str, Totals] | None = None) -> None:
        """Say what it is about to do, and what came of all before.

        Raises:
            DeclaredDeadError: others have taken over.
        """
        self._change(task=task, **({} if totals is None else {"totals": dict(totals)}))

    def end(self, totals: Mapping[str, Totals] | None = None, why: str = "") -> None:
        """Say that it ends by itself; what it has begun is left to others. Without ``totals`` those said last stay.

        Raises:
            DeclaredDeadError: others have taken over.
        """
        self.does(self._record.task, totals)
        self._change(state="ended", ending=why)
        settle_holdings(self.store, self.name, self._record, crashed=False)
        self._change(settled=True, task=Task())

    def _change(self, **what: Any) -> None:
        with self._lock:
            record = replace(self._record, alive=time.time(), **what)
            if not self.store.write("workers", self.name, record.to_data(), version=self._version):
                raise DeclaredDeadError(f"worker {self.name} was silent for so long that others took over")
            self._record, self._version = record, self._version + 1

    # Batches

    def next_batch(self) -> Batch | None:
        """Take a batch that another worker left, or else a new one; None where there is none.

        Raises:
            DeclaredDeadError: others have taken over.
        """
        return self._left_batch() or self._new_batch()

    def _left_batch(self) -> Batch | None:
        hints = [
            (number, hint, entry.version)
            for hint, entry in self.store.entries("open").items()
            if (number := read_entry(functools.partial(number_in, self.environment), entry)) is not None
        ]
        for number, hint, version in sorted(hints):
            held = self.store.read("batches", self._batch_name(number))
            batch = read_entry(open_batch_in, held)
            if batch is not None and held is not None:
                self.does(Task("batch", batch=batch, part=batch.part))
                if self._hold_batch(batch, held.version):
                    self.store.write("open", hint, None, version=version)
                    return batch
                self.does(Task())
            self.store.write("open", hint, None, version=version)
        return None

    def _new_batch(self) -> Batch | None:
        if self._none_is_left:
            return None
        number = self.store.next_number(counter_name(self.environment), number_token(self.name, self._record.taken))
        batch = Batch(number, self.plan.part_of(number))
        self._none_is_left = self.plan.size_of(number) == 0
        if self._none_is_left:
            return None
        self._change(taken=self._record.taken + 1, task=Task("batch", batch=batch, part=batch.part))
        if not self._hold_batch(batch, 0):
            raise DeclaredDeadError(f"worker {self.name} was silent for so long that others took over")
        return batch

    def _hold_batch(self, batch: Batch, version: int) -> bool:
        data = {"holder": self.name, "done": False, **dataclasses.asdict(batch)}
        return self.store.write("batches", self._batch_name(batch.number), data, version=version)

    def finish_batch(self, batch: Batch, examples: int, keys: Collection[str]) -> None:
        """Say that all programs of a batch are done.

        Args:
            batch: a batch that this worker took.
            examples: how many of its programs this worker checked.
            keys: coverage keys that no worker was known to have reached before.
        """
        name = self._batch_name(batch.number)
        held = self.store.read("batches", name)
        if held is not None and read_entry(holder_in, held) == self.name:
            done = {"finished": time.time(), "examples": examples, "keys": sorted(keys), "part": batch.part}
            self.store.write("batches", name, {"holder": None, "done": True, **done}, version=held.version)

    def _batch_name(self, number: int) -> str:
        return batch_name(self.environment, number)

    # Failures

    def claim(self, signature: str, part: int, program: Any, attempts: int = 0) -> bool:
        """Claim a failure; return whether this worker reduces it.

        Where another worker reduces one with this signature, the program is left until that is done: it may show
        something else that fails in the same way.

        Args:
            signature: of the failure, in words.
            part: the number of the part that shows it.
            program: as plain data.
            attempts: how many workers have died of it.
        """
        name = claim_name(signature)
        data = {
            "holder": self.name,
            "signature": signature[:1000],
            "part": part,
            "program": as_json(program),
            "attempts": attempts,
            "claimed": time.time(),
        }
        while True:
            entry = self.store.read("claims", name)
            version = 0 if entry is None else entry.version
            holder = None if entry is None else read_entry(holder_in, entry)
            if holder is not None and holder != self.name:
                self._postpone(name, version, part, program)
                return False
            if self.store.write("claims", name, data, version=version):
                self._held = name, version + 1
                return True

    def _postpone(self, claim: str, version: int, part: int, program: Any) -> None:
        """Leave a failure for later: one of each worker while one claim lasts, as most are the same defect."""
        if (claim, version) in self._postponed:
            return
        self._postponed.add((claim, version))
        leave(self.store, f"{claim}-{version}-{self.name}"[:140], Left("", claim, part, program))

    def release(self) -> None:
        """Say that the failure which this worker claimed, if any, is reduced."""
        if self._held is not None:
            (name, version), self._held = self._held, None
            self._free(name, version)

    def _free(self, name: str, version: int) -> None:
        entry = self.store.read("claims", name)
        if entry is not None and entry.version == version:
            self.store.write("claims", name, {**entry.data, "holder": None, "program": None}, version=version)

    def next_left(self, parts: Collection[int]) -> Left | None:
        """Take a failure that was left, once nobody reduces one with its signature; None where there is none.

        Args:
            parts: numbers of the parts that this worker can check.

        Raises:
            DeclaredDeadError: others have taken over.
        """
        for name, entry in self.store.entries("postponed").items():
            left = read_entry(functools.partial(left_in, name), entry)
            if left is None or left.part not in parts or read_entry(holder_in, entry) is not None:
                continue
            claim = self.store.read("claims", left.claim)
            if claim is not None and read_entry(holder_in, claim) is not None:
                continue
            self.does(Task("postponed", program=left.program, part=left.part, name=name))
            if self.store.write("postponed", name, {**entry.data, "holder": self.name}, version=entry.version):
                return left
            self.does(Task())
        return None

    def finish_left(self, left: Left) -> None:
        """Say that a failure which was left is dealt with."""
        entry = self.store.read("postponed", left.name)
        if entry is not None and read_entry(holder_in, entry) == self.name:
            self.store.write("postponed", left.name, None, version=entry.version)

    # Findings

    def findings(self) -> dict[str, Any]:
        """Return the data of all findings of the campaign so far, by name."""
        return {name: entry.data for name, entry in self._all("findings").items()}

    def known_findings(self) -> Iterator[tuple[str, int, Any]]:
        """Yield table and name, version, and data of all findings: of this campaign, and those known before."""
        for table in ("known", "findings"):
            for name, entry in self._all(table).items():
                yield f"{table}/{name}", entry.version, entry.data

    def keep(self, name: str, data: Mapping[str, Any]) -> None:
        """Keep a finding, unless there is a smaller one of its name.

        Args:
            name: of the finding.
            data: ``finding``, ``script``, ``title``, ``size`` and the like, as plain data.
        """
        while True:
            entry = self.store.read("findings", name)
            if entry is not None and 0 < count_in("size", entry) <= int(data["size"]):
                return
            held = {**as_json(data), "environment": self.environment, "found": time.time(), "worker": self.name}
            if self.store.write("findings", name, held, version=0 if entry is None else entry.version):
                return

    def next_elsewhere(self) -> tuple[str, Any] | None:
        """Take a finding that is to be checked in this environment too; None where there is none.

        Raises:
            DeclaredDeadError: others have taken over.
        """
        elsewhere = [
            (name, data)
            for name, data in sorted(self.findings().items())
            if isinstance(data, Mapping) and data.get("environment") != self.environment
        ]
        there = self.store.names("results") if elsewhere else {}
        for name, data in elsewhere:
            result = f"{self.environment}-{name}"
            if result in there:
                continue
            self.does(Task("finding", name=name))
            if self.store.write("results", result, {"holder": self.name, "finding": name}, version=0):
                return name, data
            self.does(Task())
        return None

    def finish_elsewhere(self, name: str, outcome: str, detail: str) -> None:
        """Say what came of a finding in this environment."""
        result = f"{self.environment}-{name}"
        data = {
            "holder": None,
            "finding": name,
            "environment": self.environment,
            "versions": dict(self._record.versions),
            "outcome": outcome,
            "detail": detail[:1000],
        }
        self.store.write("results", result, data, version=1)

    # Kept programs

    def kept(self) -> Iterator[tuple[str, Any]]:
        """Yield names and data of the programs that any worker kept since this was last asked."""
        before = set(self._seen.get("corpus", {}))
        for name, entry in self._all("corpus").items():
            if name not in before:
                yield name, entry.data

    def keep_program(self, name: str, data: Mapping[str, Any]) -> None:
        """Keep a program that reached something new; one that is kept already stays as it is.

        Args:
            name: of the program.
            data: ``mode``, ``program``, ``size`` and ``keys``, as plain data.
        """
        self.store.write("corpus", name, as_json(data), version=0)

    # Others

    def others_work(self) -> bool:
        """Tell whether another worker does something that it may leave, or find what is to be checked here too."""
        for name, entry in self.store.entries("workers").items():
            record = read_entry(WorkerRecord.read, entry)
            if record is None or name == self.name:
                continue
            if not record.settled and (record.is_over or record.task.kind != "waiting"):
                return True
        return False

    def _all(self, table: str) -> dict[str, Entry]:
        """Return all entries of a table in which none is ever deleted; only those that changed are read."""
        entries = self._seen.setdefault(table, {})
        entries.update(self.store.entries(table, {name: entry.version for name, entry in entries.items()}))
        return entries


__all__ = ["DeclaredDeadError", "Member"]
