"""How workers share a campaign in its store: batches, failures to reduce, findings, and what dead workers leave.

Every change is a compare-and-set of one entry (:mod:`pytest_regional.fuzz.store`), so it does not matter who makes it,
or how often it is tried. Three rules keep what a dead worker had from being lost or done twice:

- A worker says in its own record what it is about to take, and takes it then. So whoever settles a dead worker's record
  knows what to look at, and what the record says is no more than what the worker may have.
- What is taken names its holder. Only what a dead worker holds is taken from it.
- A record that was declared dead has another version: a worker that was only slow cannot write it again, notices, and
  stops (:class:`DeclaredDeadError`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pytest_regional._errors import RegionalError
from pytest_regional.fuzz.findings.strict_json import Field, MalformedError
from pytest_regional.fuzz.store import Entry, Store
from pytest_regional.fuzz.workers.plan import Batch, Plan, PlanError
from pytest_regional.fuzz.workers.records import Task, Totals, WorkerRecord, as_json, batch_of

#: How often one failure is reduced by workers that die of it.
ATTEMPTS = 2

#: The entry that holds the plan.
_PLAN = "plan"

T = TypeVar("T")


class DeclaredDeadError(RegionalError, RuntimeError):
    """Others took this worker for dead, as it was silent for long, and have taken over what it had."""


def joined(store: Store, plan: Plan | None) -> Plan:
    """Return the plan of the campaign in ``store``; where there is none, ``plan`` becomes it.

    A plan that is there has its own seed, and its own number of programs unless ``plan`` asks for more.

    Raises:
        PlanError: ``plan`` fuzzes something else; there is no plan at all; what is there is none.
    """
    while True:
        entry = store.read("campaign", _PLAN)
        if entry is None:
            if plan is None:
                raise PlanError(f"{store.where} holds no campaign: say what to fuzz with --backend and --mode")
            if store.write("campaign", _PLAN, as_json(plan.to_data()), version=0):
                return plan
            continue
        try:
            held = Plan.of(Field(entry.data))
        except MalformedError as error:
            raise PlanError(f"{store.where}: the plan of the campaign: {error}") from error
        if plan is None:
            return held
        if other := held.differences(plan):
            raise PlanError(f"{store.where} holds another campaign: {'; '.join(other)}. Give another --store")
        if held.programs == plan.programs:
            return held
        changed = replace(held, programs=plan.programs)
        if store.write("campaign", _PLAN, as_json(changed.to_data()), version=entry.version):
            return changed


@dataclass(frozen=True)
class Left:
    """A failure that is to be reduced, left by a worker that could not do it.

    Attributes:
        name: of its entry.
        claim: the name of the claim for its signature.
        part: the number of the part that shows it.
        program: as plain data.
        attempts: how many workers died of it.
    """

    name: str
    claim: str
    part: int
    program: Any
    attempts: int = 0


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
        _settle_holdings(self.store, self.name, self._record, crashed=False)
        self._change(settled=True, task=Task())

    def _change(self, **what: Any) -> None:
        with self._lock:
            record = replace(self._record, **what)
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
            if (number := self._read(functools.partial(_number_in, self.environment), entry)) is not None
        ]
        for number, hint, version in sorted(hints):
            held = self.store.read("batches", self._batch_name(number))
            batch = self._read(_open_batch, held)
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
        number = self.store.next_number(_counter(self.environment), _token(self.name, self._record.taken))
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
        if held is not None and self._read(_holder, held) == self.name:
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
            holder = None if entry is None else self._read(_holder, entry)
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
            left = self._read(functools.partial(_left, name), entry)
            if left is None or left.part not in parts or self._read(_holder, entry) is not None:
                continue
            claim = self.store.read("claims", left.claim)
            if claim is not None and self._read(_holder, claim) is not None:
                continue
            self.does(Task("postponed", program=left.program, part=left.part, name=name))
            if self.store.write("postponed", name, {**entry.data, "holder": self.name}, version=entry.version):
                return left
            self.does(Task())
        return None

    def finish_left(self, left: Left) -> None:
        """Say that a failure which was left is dealt with."""
        entry = self.store.read("postponed", left.name)
        if entry is not None and self._read(_holder, entry) == self.name:
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
            if entry is not None and 0 < _count("size", entry) <= int(data["size"]):
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
        """Tell whether another worker of this environment does something that it may leave."""
        for name, entry in self.store.entries("workers").items():
            record = self._read(WorkerRecord.read, entry)
            if record is None or name == self.name or record.environment != self.environment:
                continue
            if not record.settled and (record.is_over or record.task.kind != "waiting"):
                return True
        return False

    def _all(self, table: str) -> dict[str, Entry]:
        """Return all entries of a table in which none is ever deleted; only those that changed are read."""
        entries = self._seen.setdefault(table, {})
        entries.update(self.store.entries(table, {name: entry.version for name, entry in entries.items()}))
        return entries

    def _read(self, read: Callable[[Field], T], entry: Entry | None) -> T | None:
        return read_entry(read, entry)


def read_entry(read: Callable[[Field], T], entry: Entry | None) -> T | None:
    """Return what ``read`` makes of an entry; None where that is none, as a stranger may have written it."""
    try:
        return None if entry is None else read(Field(entry.data))
    except (KeyError, MalformedError):
        return None


def batch_name(environment: str, number: int) -> str:
    """Return the name of a batch's entry."""
    return f"{environment}-{number}"


def claim_name(signature: str) -> str:
    """Return the name of the claim for a signature."""
    return hashlib.sha256(signature.encode()).hexdigest()[:16]


def _counter(environment: str) -> str:
    return f"batches-{environment}"


def _count(name: str, entry: Entry) -> int:
    """Return a number that an entry holds; 0 where it holds none, as a stranger may have written it."""
    return read_entry(lambda at: at.mapping()[name].integer(0, 10_000), entry) or 0


def _token(worker: str, taken: int) -> str:
    return f"{worker}-{taken}"


def _number_in(environment: str, document: Field) -> int | None:
    """Return the number of the batch that an entry says is open, if that is one of ``environment``."""
    at = document.fields(("environment", "number"))
    return at["number"].integer(0, 2**53) if at["environment"].line() == environment else None


def _holder(document: Field) -> str | None:
    found = document.mapping()
    return found["holder"].or_none(Field.line) if "holder" in found else None


def _open_batch(document: Field) -> Batch | None:
    """Return the batch that an entry describes, if nobody holds it and it is not done."""
    at = document.mapping()
    if _holder(document) is not None or at["done"].flag():
        return None
    return _batch_in(document)


def _left(name: str, document: Field) -> Left:
    at = document.fields(("holder", "claim", "part", "program", "attempts"))
    return Left(
        name, at["claim"].line(), at["part"].integer(0, 1000), at["program"].value, at["attempts"].integer(0, 1000)
    )


def leave(store: Store, name: str, left: Left) -> None:
    """Leave a program for some worker to check, under a name of its own."""
    data = {
        "holder": None,
        "claim": left.claim,
        "part": left.part,
        "program": as_json(left.program),
        "attempts": left.attempts,
    }
    store.write("postponed", name, data, version=0)


def declare_dead(store: Store, name: str, ending: str, crashed: Any = None) -> bool:
    """Take over what a worker left that is not there any more; may be called again after any failure.

    Args:
        store: holds the campaign.
        name: of the worker's record.
        ending: how it ended, in words.
        crashed: the program that it died of, as plain data, where that is known better than the record says: a worker
            that reduces a failure checks many programs.

    Returns:
        whether it was this call that took over, or went on where another one had failed.
    """
    while True:
        entry = store.read("workers", name)
        record = read_entry(WorkerRecord.read, entry)
        if entry is None or record is None or record.settled:
            return False
        version = entry.version
        if not record.is_over:
            record = replace(record, state="dead", ending=" ".join(ending.split())[:1000])
            if not store.write("workers", name, record.to_data(), version=version):
                continue  # it lives, or another one was faster
            version += 1
        _settle_number(store, name, record)
        _settle_holdings(store, name, record, crashed=True, program=crashed)
        return store.write("workers", name, replace(record, settled=True).to_data(), version=version)


def _settle_number(store: Store, name: str, record: WorkerRecord) -> None:
    """Leave a batch open whose number the worker may have got without saying so in its record."""
    number = store.next_number(_counter(record.environment), _token(name, record.taken))
    _reopen(store, name, record.environment, number, None)


def _settle_holdings(store: Store, name: str, record: WorkerRecord, *, crashed: bool, program: Any = None) -> None:
    """Free all that the worker held; of a program that it died of, report the crash and go on behind it."""
    task = record.task
    if crashed and task.program is not None:
        crash = {
            "program": program or task.program,
            "part": task.part,
            "kind": task.kind,
            "environment": record.environment,
            "versions": dict(record.versions),
            "ending": record.ending,
            "worker": name,
        }
        store.write("crashes", name, crash, version=0)
    if task.batch is not None:
        begin = task.batch.begin + (crashed and task.program is not None)
        _reopen(store, name, record.environment, task.batch.number, replace(task.batch, begin=begin))
    for claim, entry in store.entries("claims").items():
        if read_entry(_holder, entry) == name:
            _leave_claimed(store, claim, entry, name)
    for left, entry in store.entries("postponed").items():
        if read_entry(_holder, entry) == name:
            attempts = _count("attempts", entry) + crashed
            again = {**entry.data, "holder": None, "attempts": attempts}
            store.write("postponed", left, again if attempts < ATTEMPTS else None, version=entry.version)
    for result, entry in store.entries("results").items():
        if read_entry(_holder, entry) == name:
            died = {**entry.data, "holder": None, "outcome": "error", "detail": record.ending}
            store.write("results", result, died, version=entry.version)


def _leave_claimed(store: Store, claim: str, entry: Entry, name: str) -> None:
    """Leave to others a failure that a worker was reducing, unless workers die of it."""
    attempts, program = _count("attempts", entry) + 1, entry.data.get("program")
    if attempts < ATTEMPTS and program is not None:
        left = Left("", claim, _count("part", entry), program, attempts)
        leave(store, f"{claim}-{entry.version}-{name}"[:140], left)
    store.write("claims", claim, {**entry.data, "holder": None, "program": None}, version=entry.version)


def _reopen(store: Store, name: str, environment: str, number: int, batch: Batch | None) -> None:
    """Have others take a batch if ``name`` holds it, or nobody ever did."""
    entry_name, opened = batch_name(environment, number), {"environment": environment, "number": number}
    entry = store.read("batches", entry_name)
    if entry is None:
        plan = joined(store, None)
        batch = batch or Batch(number, plan.part_of(number))
        if plan.size_of(number) == 0:
            return
        version = 0
    elif read_entry(_holder, entry) == name:
        batch = batch or read_entry(_batch_in, entry)
        version = entry.version
    else:
        if read_entry(_open_batch, entry) is not None:  # a caller before this one failed behind this line
            store.write("open", f"{entry_name}-{entry.version}", opened, version=0)
        return
    if batch is None:
        return
    data = {"holder": None, "done": False, **dataclasses.asdict(batch)}
    if store.write("batches", entry_name, data, version=version):
        store.write("open", f"{entry_name}-{version + 1}", opened, version=0)


def _batch_in(document: Field) -> Batch:
    at = document.mapping()
    return batch_of(Field({name: at[name].value for name in ("number", "part", "begin", "drawn")}))


__all__ = [
    "ATTEMPTS",
    "DeclaredDeadError",
    "Left",
    "Member",
    "batch_name",
    "claim_name",
    "declare_dead",
    "joined",
    "leave",
    "read_entry",
]
