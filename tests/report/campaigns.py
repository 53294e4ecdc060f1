"""A store as a campaign of two hours leaves it, without the campaign: for tests of what is shown of one."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from pytest_regional.fuzz.findings.strict_json import as_json
from pytest_regional.fuzz.store import Store
from pytest_regional.fuzz.workers.plan import Batch, Part, Plan, joined
from pytest_regional.fuzz.workers.records import Task, Totals, WorkerRecord

PLAN = Plan(
    (Part("inductor", "cpu", "native"), Part("reference", "cuda-emulated", "emulated")), 7, ("2.11", "2.13", "2.15")
)


def filled(store: Store, *, findings: int = 40, workers: int = 8, seconds: float = 7300.0, refused: int = 3) -> None:
    """Write into ``store`` what such a campaign leaves."""
    chance, now = random.Random(0), time.time()
    joined(store, PLAN)
    batches = int(seconds / 20)
    for number in range(batches):
        finished = now - seconds + 25 + number * 19.5
        keys = [f"key {one}" for one in range(int(40 * number**0.5), int(40 * (number + 1) ** 0.5))]
        done = {"holder": None, "done": True, "finished": finished, "examples": chance.randint(12, 20), "keys": keys}
        store.write("batches", f"2.13-{number}", {**done, "part": number % 2}, version=0)
    for number in range(findings):
        name, found = f"inductor-parity-run-{number:08x}", now - seconds + 60 + seconds * 0.9 * (number / findings) ** 2
        row = {"title": f"parity (run): value of output ({chance.choice(['cumsum', 'sin, cat', 'topk'])})", "size": 3}
        entry = {"finding": {}, "script": "", **row, "environment": "2.13", "found": found, "worker": "a"}
        store.write("findings", name, entry, version=0)
        if number % 2:
            result = {"holder": None, "finding": name, "environment": "2.15", "versions": {}, "outcome": "fixed"}
            store.write("results", f"2.15-{name}", {**result, "detail": ""}, version=0)
    for number in range(workers + 2):
        totals = Totals(examples=700, skipped_known=90, seconds=7000.0)
        totals.refused["RuntimeError: sizes do not match"] = refused
        totals.unclaimed["dynamic_shapes"] = 20
        totals.hits["inductor-parity-run-00000003"] = 4
        task = Task("batch", now - 3, Batch(400 + number, number % 2, 7), {"version": 1}, number % 2)
        versions = {"torch": "2.13.0", "triton": "3.7.1"}
        record = WorkerRecord(
            "2.13", "host", 100 + number, f"host-{number}", versions, now - seconds + number, task=task
        )
        record = replace(record, totals={PLAN.parts[number % 2].name: totals})
        if number >= workers:
            record = replace(record, state="dead", settled=True, ending="ended by SIGSEGV", task=Task())
            crash = {"program": {}, "part": 0, "kind": "batch", "environment": "2.13", "versions": {}}
            store.write("crashes", f"host-{number}", {**crash, "ending": "ended by SIGSEGV", "worker": "x"}, version=0)
        store.write("workers", f"host-{number}", record.to_data(), version=0)
    claim = {"holder": "host-1", "signature": "inductor: parity (run): stride of output", "part": 0, "program": {}}
    store.write("claims", "c", as_json({**claim, "attempts": 0, "claimed": now}), version=0)
