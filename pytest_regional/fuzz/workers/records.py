"""What workers keep in the store: who they are, what each does now, and what came of it so far."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_regional.fuzz.findings.strict_json import Field, as_json
from pytest_regional.fuzz.workers.plan import Batch

#: More than any count of a campaign.
_MOST = 2**53

#: The year 5138, in seconds since the epoch.
_LAST_TIME = 1e11

#: How a worker is: ``dead`` is said by others, or by the next worker of the same place.
STATES = ("working", "ended", "dead")

#: What a worker does: programs of a batch, a program that another worker left, a finding of another environment, a kept
#: program of the corpus, or nothing.
TASKS = ("batch", "postponed", "finding", "kept", "waiting")


@dataclass
class Totals:
    """What came of the programs of one part.

    Attributes:
        examples: how many were checked.
        skipped_known: how many were not, as they show nothing but known findings.
        left_to_others: how many failures other workers reduce.
        refused: by reason, how many programs eager refuses.
        unclaimed: by capability, how many programs need what the backend disclaims.
        unconfirmed: by oracle, how many violations Dynamo's path does not show.
        hits: by the name of a finding, how many programs failed so.
        seconds: of the wall clock.
        reducing: seconds of it that went into reducing.
    """

    examples: int = 0
    skipped_known: int = 0
    left_to_others: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    unclaimed: Counter[str] = field(default_factory=Counter)
    unconfirmed: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    reducing: float = 0.0

    @classmethod
    def of(cls, source: Any) -> Totals:
        """Return those of anything that has such attributes, as a campaign's result has."""
        return cls(**{one.name: getattr(source, one.name) for one in dataclasses.fields(cls)})

    @classmethod
    def read(cls, document: Field) -> Totals:
        """Return those that plain data describes.

        Raises:
            MalformedError: it describes none.
        """
        at = document.fields([one.name for one in dataclasses.fields(cls)])
        numbers = {name: at[name].integer(0, _MOST) for name in ("examples", "skipped_known", "left_to_others")}
        seconds = {name: float(at[name].number()) for name in ("seconds", "reducing")}
        counters = {
            name: Counter({key: one.integer(0, _MOST) for key, one in at[name].mapping(100_000).items()})
            for name in ("refused", "unclaimed", "unconfirmed", "hits")
        }
        everything: dict[str, Any] = {**numbers, **seconds, **counters}
        return cls(**everything)

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            **{one.name: getattr(self, one.name) + getattr(other, one.name) for one in dataclasses.fields(self)}
        )


def sum_of(totals: Iterable[Totals]) -> Totals:
    """Return the sum."""
    return sum(totals, Totals())


@dataclass(frozen=True)
class Task:
    """What a worker does now.

    Attributes:
        kind: one of :data:`TASKS`.
        since: when it began, in seconds since the epoch by the clock of the worker's machine.
        batch: of a batch, how far it is: its ``begin`` is the program that is checked.
        program: the program that is checked, as plain data; None between two.
        part: the number of the part.
        name: of the entry in the store that holds the program, for what is no batch.
    """

    kind: str = "waiting"
    since: float = field(default_factory=time.time)
    batch: Batch | None = None
    program: Any = None
    part: int = 0
    name: str = ""

    @classmethod
    def read(cls, document: Field) -> Task:
        """Return the one that plain data describes; the program is not looked at.

        Raises:
            MalformedError: it describes none.
        """
        at = document.fields([one.name for one in dataclasses.fields(cls)])
        return cls(
            at["kind"].one_of(TASKS),
            time_in(at["since"]),
            at["batch"].or_none(batch_of),
            at["program"].value,
            at["part"].integer(0, 1000),
            at["name"].line(),
        )


def time_in(document: Field) -> float:
    """Return seconds since the epoch.

    Raises:
        MalformedError: it is no time that any clock shows.
    """
    seconds = float(document.number())
    if not 0 <= seconds <= _LAST_TIME:
        document.refuse(f"{seconds} is no time")
    return seconds


def batch_of(document: Field) -> Batch:
    """Return the batch that plain data describes.

    Raises:
        MalformedError: it describes none.
    """
    at = document.fields(("number", "part", "begin", "drawn"))
    return Batch(*(at[name].integer(0, _MOST) for name in ("number", "part", "begin", "drawn")))


@dataclass(frozen=True)
class WorkerRecord:
    """One worker process, from its start on. It changes its record; after its death another process does, once.

    Attributes:
        environment: the name of its Python environment.
        host: the machine.
        process: its number there.
        place: which of the machine's workers it is; the next one there has the same place.
        versions: of torch and triton.
        begun: when, in seconds since the epoch.
        alive: when it changed this record last, by the clock of its machine.
        state: one of :data:`STATES`.
        beat: grows while it lives.
        taken: how many batches it took.
        task: what it does.
        totals: what came of each part, by its name.
        settled: whether, after its death, others have taken over what it left.
        ending: why it ended, in words.
    """

    environment: str
    host: str
    process: int
    place: str
    versions: Mapping[str, str] = field(default_factory=dict)
    begun: float = field(default_factory=time.time)
    alive: float = field(default_factory=time.time)
    state: str = "working"
    beat: int = 0
    taken: int = 0
    task: Task = field(default_factory=Task)
    totals: Mapping[str, Totals] = field(default_factory=dict)
    settled: bool = False
    ending: str = ""

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, which JSON gives back as it is."""
        data = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        batch = self.task.batch and vars(self.task.batch)
        totals = {name: vars(one) for name, one in self.totals.items()}
        made: dict[str, Any] = as_json({**data, "task": {**vars(self.task), "batch": batch}, "totals": totals})
        return made

    @classmethod
    def read(cls, document: Field) -> WorkerRecord:
        """Return the one that plain data describes.

        Raises:
            MalformedError: it describes none.
        """
        at = document.fields([one.name for one in dataclasses.fields(cls)])
        return cls(
            at["environment"].line(),
            at["host"].line(),
            at["process"].integer(0, _MOST),
            at["place"].line(),
            {name: one.line() for name, one in at["versions"].mapping(100).items()},
            time_in(at["begun"]),
            time_in(at["alive"]),
            at["state"].one_of(STATES),
            at["beat"].integer(0, _MOST),
            at["taken"].integer(0, _MOST),
            Task.read(at["task"]),
            {name: Totals.read(one) for name, one in at["totals"].mapping(1000).items()},
            at["settled"].flag(),
            at["ending"].text(),
        )

    @property
    def is_over(self) -> bool:
        """Whether it ended by itself, or is dead."""
        return self.state != "working"


__all__ = ["STATES", "TASKS", "Task", "Totals", "WorkerRecord", "batch_of", "sum_of", "time_in"]
