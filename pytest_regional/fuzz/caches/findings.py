"""A finding that is a history of a cache: its signature, its file, its script, and how it becomes short."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_regional._torch.config import TIMINGS
from pytest_regional.fuzz.caches.histories import (
    DAMAGES,
    Clear,
    Compile,
    Damage,
    Event,
    NewProcess,
    Restart,
    run_history,
)
from pytest_regional.fuzz.caches.model import PROGRAMS, STATES, Key, canonical
from pytest_regional.fuzz.findings.provenance import Circumstances, Signature, circumstances_of
from pytest_regional.fuzz.findings.scripts import with_harness
from pytest_regional.fuzz.findings.strict_json import Field
from pytest_regional.fuzz.modes import nearest_lane

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

History = tuple[Event, ...]

_KINDS: Mapping[str, type] = {
    "compile": Compile,
    "new process": NewProcess,
    "restart": Restart,
    "damage": Damage,
    "clear": Clear,
}


@dataclass(frozen=True)
class HistoryFinding(Circumstances):
    """One distinct defect of a cache.

    Attributes:
        signature: what makes another failure the same defect.
        history: the shortest history known to show it.
        found: the history that showed it first.
        detail: what was seen, for people.
    """

    unit: ClassVar[str] = "event"

    signature: Signature
    history: History
    found: History
    detail: str

    @property
    def name(self) -> str:
        """The stem of its files."""
        return f"{self.backend.rpartition(':')[2]}-{self.signature.name}"

    @property
    def size(self) -> int:
        """How many events the history has."""
        return len(self.history)

    @property
    def title(self) -> str:
        """One line that says what happens."""
        told = ", ".join(sorted(feature.partition(":")[2] for feature in self.signature.features))
        return f"{self.signature} ({told})"

    @property
    def text(self) -> str:
        """The history, a line for each event."""
        return "\n".join(told(self.history))

    @property
    def script(self) -> str:
        """Its script, which needs this package."""
        return with_harness(self.title, self.text, self.backend, self.device)

    @property
    def script_with_torch_alone(self) -> None:
        """None: what a cache answers shows in counters."""
        return None

    @property
    def features(self) -> frozenset[str]:
        """What tells it from others."""
        return features_of_history(self.history)

    def judge(self, regional: Regional) -> None:
        """Play the history again, in its lane, or in the one that this harness can take.

        Raises:
            LawBrokenError: it still breaks the model.
        """
        run_history(regional, self.history, lane=nearest_lane(regional, self.lane))

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, all but its version."""
        return {
            "history": list(map(_data, self.history)),
            "found": list(map(_data, self.found)),
            "detail": self.detail,
            **self.circumstances(),
        }

    @classmethod
    def from_fields(cls, signature: Signature, fields: Mapping[str, Field]) -> HistoryFinding:
        """Return the finding that the fields of a document describe.

        Raises:
            MalformedError: one does not hold what it has to.
        """
        return cls(
            signature,
            tuple(map(_event, fields["history"].items())),
            tuple(map(_event, fields["found"].items())),
            fields["detail"].text(),
            **circumstances_of(fields),
        )


def told(history: Sequence[Event]) -> list[str]:
    """Return a line for each event."""
    return list(map(_told, history))


def _told(event: Event) -> str:
    match event:
        case Compile(key):
            return f"compile: {key}"
        case NewProcess(key):
            return f"compile in a new process: {key}"
        case Restart():
            return "restart"
        case Damage(number, kind):
            return f"damage file {number}: {kind}"
        case Clear():
            return "clear the cache"


def features_of_history(history: Sequence[Event]) -> frozenset[str]:
    """Return what tells histories apart: what happened, and how the last compile differs from the most similar one."""
    if any(isinstance(event, Damage) for event in history):
        # Which file was hit decides, and that is drawn from names that differ from run to run.
        return frozenset({"event:damage"})
    return min(possible_features(history), key=len)


def possible_features(history: Sequence[Event]) -> list[frozenset[str]]:
    """Return what may tell a history apart: the last compile may be taken for any before it."""
    keys = [event.key for event in history if isinstance(event, (Compile, NewProcess))]
    happened = {f"event:{kind}" for kind, cls in _KINDS.items() if any(type(event) is cls for event in history)}
    happened -= {"event:compile"}
    others = [key for key in keys[:-1] if key.entry != keys[-1].entry]
    if others:
        return [frozenset(happened | {f"changed:{name}" for name in _changed(key, keys[-1])}) for key in others]
    return [frozenset(happened | {f"key:{name}" for name in (_changed(Key(), keys[-1]) if keys else ())})]


def _changed(one: Key, other: Key) -> list[str]:
    names = [entry.name for entry in dataclasses.fields(Key)]
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def reduce_history(history: History, still_fails: Callable[[History], bool], *, seconds: float = 60.0) -> History:
    """Return a shorter history that ``still_fails``: fewer events, then keys with fewer settings."""
    end = time.monotonic() + seconds
    shorter = True
    while shorter:
        shorter = False
        for candidate in _smaller(history):
            if time.monotonic() > end:
                return history
            if still_fails(candidate):
                history, shorter = candidate, True
                break
    return history


def _smaller(history: History) -> Iterator[History]:
    """Yield histories with one event less, then with one field of all keys as simple as it gets."""
    for place in reversed(range(len(history))):
        yield (*history[:place], *history[place + 1 :])
    simplest = Key()
    for entry in dataclasses.fields(Key):
        changes = {entry.name: getattr(simplest, entry.name)}
        simpler = tuple(_with_key(event, changes) for event in history)
        if simpler != history:
            yield simpler


def _with_key(event: Event, changes: Mapping[str, Any]) -> Event:
    if isinstance(event, (Compile, NewProcess)):
        return type(event)(canonical(replace(event.key, **changes)))
    return event


def _data(event: Event) -> dict[str, Any]:
    kind = next(name for name, cls in _KINDS.items() if type(event) is cls)
    if isinstance(event, (Compile, NewProcess)):
        changed = {name: getattr(event.key, name) for name in _changed(Key(), event.key)}
        return {"event": kind, "key": {n: list(v) if isinstance(v, tuple) else v for n, v in changed.items()}}
    return {"event": kind, **dataclasses.asdict(event)}


def _event(field: Field) -> Event:
    given = field.mapping()
    kind = given["event"].one_of(_KINDS) if "event" in given else field.refuse("the field 'event' is missing")
    match kind:
        case "compile" | "new process":
            key = _key(field.fields(("event", "key"))["key"])
            return Compile(key) if kind == "compile" else NewProcess(key)
        case "damage":
            fields = field.fields(("event", "number", "kind"))
            return Damage(fields["number"].integer(0, 10**6), fields["kind"].one_of(DAMAGES))
    field.fields(("event",))
    return Restart() if kind == "restart" else Clear()


_KEY: Mapping[str, Callable[[Field], Any]] = {
    "program": lambda field: field.one_of(PROGRAMS),
    "region": lambda field: field.or_none(Field.line),
    "fusion": lambda field: field.or_none(lambda number: number.integer(0, 4096)),
    "passes": lambda field: tuple(item.or_none(Field.line) for item in field.items(100)),
    "timing": lambda field: field.one_of(TIMINGS),
    "size": lambda field: field.integer(0, 4096),
    "dynamic": Field.flag,
    "training": Field.flag,
    "state": lambda field: field.one_of(STATES),
}


def _key(field: Field) -> Key:
    fields = field.fields((), tuple(_KEY))
    return Key(**{name: _KEY[name](one) for name, one in fields.items()})
