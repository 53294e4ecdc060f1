"""Faults of pre-grad passes: they run too often, too rarely, or say too little of themselves."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from tests.faults.planting import Mutant, Patch

TABLE = "suites/pre_grad/test_table.py"
KEYS = "suites/pre_grad/test_keys.py"
EFFECTS = "suites/pre_grad/test_effects.py"
ERRORS = "suites/pre_grad/test_errors.py"


def _on_hits_too(original: Any) -> Any:
    def lookup(self: Any, question: Any) -> Any:
        answer = original(self, question)
        if answer.compiled is not None and not self.plan.early:
            self.plan.run(question.graph)
        return answer

    return lookup


def _twice(original: Any) -> Any:
    def run(self: Any, gm: Any) -> None:
        original(self, gm)
        original(self, gm)

    return run


def _first_alone(original: Any) -> Any:
    def plan(*arguments: Any) -> Any:
        made = original(*arguments)
        return dataclasses.replace(made, passes=made.passes[:1])

    return plan


def _late_without_uuid(original: Any) -> Any:
    """Run passes without a uuid on a miss alone, where nobody demands that they have one."""

    def plan(timing: str | None = None) -> Any:
        made = original(timing)
        return dataclasses.replace(made, early=False, uuids=()) if made.early and timing != "early" else made

    return plan


def _without_uuids(original: Any) -> Any:
    def plan(*arguments: Any) -> Any:
        return dataclasses.replace(original(*arguments), uuids=())

    return plan


def _uuids_unordered(original: Any) -> Any:
    def plan(*arguments: Any) -> Any:
        made = original(*arguments)
        return dataclasses.replace(made, uuids=tuple(sorted(made.uuids, key=repr)))

    return plan


def _fault(name: str, sentence: str, suites: tuple[str, ...], target: str, change: Any, *modes: str) -> Mutant:
    oracles = ("caches", "warm", "uuid_in_key", "counters")
    return Mutant(name, sentence, oracles, suites, (Patch(target, change),), modes=modes or ("interpret", "caches"))


PLAN = "dynamo_backend:plan_pre_grad"

FAULTS = (
    _fault("uuid_missing", "uuids of passes are no part of the key", (KEYS,), PLAN, _without_uuids),
    _fault(
        "uuids_unordered",
        "a list of passes has the key of the list turned round",
        (KEYS,),
        PLAN,
        _uuids_unordered,
        "caches",
    ),
    _fault(
        "pass_run_on_hit",
        "a late pass runs on a hit as well",
        (TABLE,),
        "caching.outer:OuterCache._lookup",
        _on_hits_too,
    ),
    _fault(
        "pass_run_twice", "passes run twice on each graph", (TABLE, EFFECTS), "pass_protocol:PreGradPlan.run", _twice
    ),
    _fault("first_pass_alone", "of a list of passes the first runs", (KEYS,), PLAN, _first_alone, "caches"),
    _fault(
        "late_without_uuid",
        "a pass without a uuid runs on a miss alone",
        (TABLE, ERRORS),
        PLAN,
        _late_without_uuid,
        "caches",
    ),
    _fault(
        "pass_run_in_regions",
        "passes run again in every region",
        (EFFECTS,),
        "dynamo_backend:pre_grad_passes_done",
        lambda original: contextlib.nullcontext,
        "emulated",
    ),
)
