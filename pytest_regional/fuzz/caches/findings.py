"""A finding that is a sequence of cache operations: its signature, its file, its script, and how it becomes short."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_regional._torch.config import TIMINGS
from pytest_regional.fuzz.caches.collectives import COLLECTIVES, GROUPS, MESHES
from pytest_regional.fuzz.caches.model import PROGRAMS, STATES, Key, canonical
from pytest_regional.fuzz.caches.sequences import (
    DAMAGES,
    Clear,
    Compile,
    Damage,
    Event,
    NewProcess,
    Restart,
    run_sequence,
)
from pytest_regional.fuzz.findings.provenance import Provenance, Signature, provenance_of
from pytest_regional.fuzz.findings.scripts import with_harness
from pytest_regional.fuzz.findings.strict_json import Field
from pytest_regional.fuzz.modes import nearest_mode

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

CacheSequence = tuple[Event, ...]

_KINDS: Mapping[str, type] = {
    "compile": Compile,
    "new process": NewProcess,
    "restart": Restart,
    "damage": Damage,
    "clear": Clear,
}


@dataclass(frozen=True)
class SequenceFinding(Provenance):
    """One distinct defect of a cache.

    Attributes:
        signature: what makes another failure the same defect.
        sequence: the shortest sequence known to show it.
        original_sequence: the sequence that showed it first.
        detail: what was seen, for people.
    """

    unit: ClassVar[str] = "event"

    signature: Signature
    sequence: CacheSequence
    original_sequence: CacheSequence
    detail: str

    @property
    def name(self) -> str:
        """The stem of its files."""
        return f"{self.backend.rpartition(':')[2]}-{self.signature.name}"

    @property
    def size(self) -> int:
        """How many events the sequence has."""
        return len(self.sequence)

    @property
    def title(self) -> str:
        """One line that says what happens."""
        features = ", ".join(sorted(feature.partition(":")[2] for feature in self.signature.features))
        return f"{self.signature} ({features})"

    @property
    def text(self) -> str:
        """The sequence, a line for each event."""
        return "\n".join(lines_of(self.sequence))

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
        return features_of_sequence(self.sequence)

    def check(self, regional: Regional) -> None:
        """Execute the sequence again, in its mode, or in the one that this harness can take.

        Raises:
            OracleViolationError: it still breaks the model.
        """
        run_sequence(regional, self.sequence, mode=nearest_mode(regional, self.mode))

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, all but its version."""
        return {
            "sequence": list(map(_data, self.sequence)),
            "original_sequence": list(map(_data, self.original_sequence)),
            "detail": self.detail,
            **self.provenance(),
        }

    @classmethod
    def from_fields(cls, signature: Signature, fields: Mapping[str, Field]) -> SequenceFinding:
        """Return the finding that the fields of a document describe.

        Raises:
            MalformedError: one does not hold what it has to.
        """
        return cls(
            signature,
            tuple(map(_event, fields["sequence"].items())),
            tuple(map(_event, fields["original_sequence"].items())),
            fields["detail"].text(),
            **provenance_of(fields),
        )


def lines_of(sequence: Sequence[Event]) -> list[str]:
    """Return a line for each event."""
    return list(map(_line, sequence))


def _line(event: Event) -> str:
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


def features_of_sequence(sequence: Sequence[Event]) -> frozenset[str]:
    """Return what tells sequences apart: what happened, and how the last compile differs from the most similar one."""
    if any(isinstance(event, Damage) for event in sequence):
        # Which file was hit decides, and that is drawn from names that differ from run to run.
        return frozenset({"event:damage"})
    return min(possible_features(sequence), key=len)


def possible_features(sequence: Sequence[Event]) -> list[frozenset[str]]:
    """Return what may tell a sequence apart: the last compile may be taken for any before it."""
    keys = [event.key for event in sequence if isinstance(event, (Compile, NewProcess))]
    happened = {f"event:{kind}" for kind, cls in _KINDS.items() if any(type(event) is cls for event in sequence)}
    happened -= {"event:compile"}
    others = [key for key in keys[:-1] if key.entry != keys[-1].entry]
    if others:
        return [frozenset(happened | {f"changed:{name}" for name in _changed(key, keys[-1])}) for key in others]
    return [frozenset(happened | {f"key:{name}" for name in (_changed(Key(), keys[-1]) if keys else ())})]


def _changed(one: Key, other: Key) -> list[str]:
    names = [entry.name for entry in dataclasses.fields(Key)]
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def reduce_sequence(
    sequence: CacheSequence, still_fails: Callable[[CacheSequence], bool], *, seconds: float = 60.0
) -> CacheSequence:
    """Return a shorter sequence that ``still_fails``: fewer events, then keys with fewer settings."""
    end = time.monotonic() + seconds
    shorter = True
    while shorter:
        shorter = False
        for candidate in _smaller(sequence):
            if time.monotonic() > end:
                return sequence
            if still_fails(candidate):
                sequence, shorter = candidate, True
                break
    return sequence


def _smaller(sequence: CacheSequence) -> Iterator[CacheSequence]:
    """Yield sequences with one event less, then with one field of all keys as simple as it gets."""
    for place in reversed(range(len(sequence))):
        yield (*sequence[:place], *sequence[place + 1 :])
    simplest = Key()
    for entry in dataclasses.fields(Key):
        changes = {entry.name: getattr(simplest, entry.name)}
        simpler = tuple(_with_key(event, changes) for event in sequence)
        if simpler != sequence:
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
    "program": lambda field: field.one_of((*PROGRAMS, *COLLECTIVES)),
    "region": lambda field: field.or_none(Field.line),
    "fusion": lambda field: field.or_none(lambda number: number.integer(0, 4096)),
    "passes": lambda field: tuple(item.or_none(Field.line) for item in field.items(100)),
    "timing": lambda field: field.one_of(TIMINGS),
    "size": lambda field: field.integer(0, 4096),
    "dynamic": Field.flag,
    "training": Field.flag,
    "state": lambda field: field.one_of(STATES),
    "world": lambda field: field.integer(0, 8),
    "rank": lambda field: field.integer(0, 7),
    "mesh": lambda field: field.one_of(("", *MESHES)),
    "group": lambda field: field.one_of(GROUPS),
    "traces": Field.flag,
}


def _key(field: Field) -> Key:
    fields = field.fields((), tuple(_KEY))
    key = Key(**{name: _KEY[name](one) for name, one in fields.items()})
    if key.rank >= max(key.world, 1):
        fields["rank"].refuse(f"there is no rank {key.rank} of {key.world}")
    return key
