"""A finding that is a sequence of cache operations: its signature, its file, its script, and how it becomes short."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, structs

from pytest_regional._base.processes import cpu_seconds
from pytest_regional._torch.config import TIMINGS
from pytest_regional.fuzz.caches.sequences import (
    COLLECTIVES,
    DAMAGES,
    GROUPS,
    MESHES,
    PROGRAMS,
    STATES,
    Clear,
    Compile,
    Damage,
    Event,
    Key,
    NewProcess,
    Restart,
    canonical,
    run_sequence,
)
from pytest_regional.fuzz.findings.files import Provenance, Signature
from pytest_regional.fuzz.findings.scripts import with_harness
from pytest_regional.fuzz.settings import nearest_mode

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
        return "\n".join(map(_line, self.sequence))

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
    end = cpu_seconds() + seconds
    shorter = True
    while shorter:
        shorter = False
        for candidate in _smaller(sequence):
            if cpu_seconds() > end:
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
        simpler = tuple(
            type(event)(canonical(replace(event.key, **changes))) if isinstance(event, (Compile, NewProcess)) else event
            for event in sequence
        )
        if simpler != sequence:
            yield simpler


def _data(event: Event) -> dict[str, Any]:
    kind = next(name for name, cls in _KINDS.items() if type(event) is cls)
    if isinstance(event, (Compile, NewProcess)):
        changed = {name: getattr(event.key, name) for name in _changed(Key(), event.key)}
        return {"event": kind, "key": {n: list(v) if isinstance(v, tuple) else v for n, v in changed.items()}}
    return {"event": kind, **dataclasses.asdict(event)}


_Ranks = Annotated[int, Meta(ge=0, le=8)]
_Size = Annotated[int, Meta(ge=0, le=4096)]
_Line = Annotated[str, Meta(max_length=200)]

_KEY: Mapping[str, Any] = {
    "program": Literal[(*PROGRAMS, *COLLECTIVES)],
    "region": _Line | None,
    "fusion": _Size | None,
    "passes": Annotated[tuple[_Line | None, ...], Meta(max_length=100)],
    "timing": Literal[TIMINGS],
    "size": _Size,
    "dynamic": bool,
    "training": bool,
    "state": Literal[tuple(STATES)],
    "world": _Ranks,
    "rank": _Ranks,
    "mesh": Literal[("", *MESHES)],
    "group": Literal[GROUPS],
}
_KeyFields: Any = defstruct(
    "_KeyFields", [(name, kind, getattr(Key(), name)) for name, kind in _KEY.items()], forbid_unknown_fields=True
)


class EventFields(Struct, forbid_unknown_fields=True):
    """An event in a finding file."""

    event: Literal[tuple(_KINDS)]  # type: ignore[valid-type]
    key: _KeyFields | UnsetType = UNSET
    number: Annotated[int, Meta(ge=0, le=10**6)] | UnsetType = UNSET
    kind: Literal[tuple(DAMAGES)] | UnsetType = UNSET  # type: ignore[valid-type]

    def __post_init__(self) -> None:
        """Check that the fields are those of the event, and that texts can be printed."""
        given = {name for name in ("key", "number", "kind") if getattr(self, name) is not UNSET}
        needed = {field.name for field in dataclasses.fields(_KINDS[self.event])}
        if given != needed:
            raise ValueError(f"the event {self.event!r} has the fields: {', '.join(sorted(needed)) or 'no others'}")
        if self.key is not UNSET:
            if self.key.rank >= max(self.key.world, 1):
                raise ValueError(f"key.rank: there is no rank {self.key.rank} of {self.key.world}")
            if not all(line is None or line.isprintable() for line in (self.key.region, *self.key.passes)):
                raise ValueError("key: a text that is not a line of printable characters")

    def made(self) -> Event:
        """Return the event."""
        given = {name: getattr(self, name) for name in ("number", "kind") if getattr(self, name) is not UNSET}
        if self.key is not UNSET:
            given["key"] = Key(**structs.asdict(self.key))
        event: Event = _KINDS[self.event](**given)
        return event
