"""Takes over what a worker left that is not there any more, so that nothing is lost and nothing is done twice."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.store import Entry, Store
from pytest_regional.fuzz.workers.entries import (
    Left,
    batch_in,
    batch_name,
    count_in,
    counter_name,
    holder_in,
    leave,
    number_token,
    open_batch_in,
    read_entry,
)
from pytest_regional.fuzz.workers.plan import Batch, joined
from pytest_regional.fuzz.workers.records import WorkerRecord

#: How often one failure is reduced by workers that die of it.
ATTEMPTS = 2


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
        settle_holdings(store, name, record, crashed=True, program=crashed)
        return store.write("workers", name, replace(record, settled=True).to_data(), version=version)


def _settle_number(store: Store, name: str, record: WorkerRecord) -> None:
    """Leave a batch open whose number the worker may have got without saying so in its record."""
    number = store.next_number(counter_name(record.environment), number_token(name, record.taken))
    _reopen(store, name, record.environment, number, None)


def settle_holdings(store: Store, name: str, record: WorkerRecord, *, crashed: bool, program: Any = None) -> None:
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
        if read_entry(holder_in, entry) == name:
            _leave_claimed(store, claim, entry, name)
    for left, entry in store.entries("postponed").items():
        if read_entry(holder_in, entry) == name:
            attempts = count_in("attempts", entry) + crashed
            again = {**entry.data, "holder": None, "attempts": attempts}
            store.write("postponed", left, again if attempts < ATTEMPTS else None, version=entry.version)
    for result, entry in store.entries("results").items():
        if read_entry(holder_in, entry) == name:
            died = {**entry.data, "holder": None, "outcome": "error", "detail": record.ending}
            store.write("results", result, died, version=entry.version)


def _leave_claimed(store: Store, claim: str, entry: Entry, name: str) -> None:
    """Leave to others a failure that a worker was reducing, unless workers die of it."""
    attempts, program = count_in("attempts", entry) + 1, entry.data.get("program")
    if attempts < ATTEMPTS and program is not None:
        left = Left("", claim, count_in("part", entry), program, attempts)
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
    elif read_entry(holder_in, entry) == name:
        batch = batch or read_entry(batch_in, entry)
        version = entry.version
    else:
        if read_entry(open_batch_in, entry) is not None:  # a caller before this one failed behind this line
            store.write("open", f"{entry_name}-{entry.version}", opened, version=0)
        return
    if batch is None:
        return
    data = {"holder": None, "done": False, **dataclasses.asdict(batch)}
    if store.write("batches", entry_name, data, version=version):
        store.write("open", f"{entry_name}-{version + 1}", opened, version=0)


__all__ = ["ATTEMPTS", "declare_dead", "settle_holdings"]
