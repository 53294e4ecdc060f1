"""The counters: what they mean, a live log of what moved them, and expectations over their deltas."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pytest_regional._base.errors import RegionalError
from pytest_regional._base.text import unknown_name

COUNTERS: dict[str, str] = {
    "traces": "frames that Dynamo traced",
    "graphs": "graphs handed to the backend's compilers: inference, forward and backward, as AOTAutograd made them",
    "regions": "regions (one per graph and region key) found in those graphs",
    "region_compiles": "code generations of Inductor's, and compiles that the backend reports; no cache loads",
    "pre_grad_calls": "runs of a custom pre-grad pass on a whole Dynamo graph",
    "cache_hits": "lookups of a whole Dynamo graph's result that were answered",
    "cache_misses": "lookups of a whole Dynamo graph's result that found nothing",
    "cache_bypasses": "lookups of a whole Dynamo graph's result that could not be made (the cause says why)",
    "cache_saves": "results of whole Dynamo graphs that were stored",
    "recompiles": "Dynamo compilations of a frame that had been compiled before (the cause says which guard failed)",
    "fallbacks": "frames or regions that were asked to compile and ran eager instead",
    "region_cache_hits": "lookups of one region's code that were answered",
    "region_cache_misses": "lookups of one region's code that found nothing",
    "region_cache_bypasses": "lookups of one region's code that could not be made",
    "region_cache_saves": "compiled regions that were stored",
    "region_pre_grad_calls": "runs of a custom pre-grad pass on one region's subgraph",
}


class UnknownCounterError(RegionalError, LookupError, AttributeError):
    """A counter name that does not exist; the message lists the live ones."""

    def __init__(self, name: object) -> None:
        super().__init__(unknown_name("counter", name, COUNTERS))


class CounterExpectationError(RegionalError, AssertionError):
    """Counters moved differently than expected; the message lists those that moved, and what caused each step."""


@dataclass(frozen=True)
class Event:
    """One step of one counter, its cause, and when: seconds since the log began.

    ``other`` names the Dynamo backend that caused it; empty for the one under test.
    """

    counter: str
    cause: str
    seconds: float = field(default=0.0, compare=False)
    other: str = ""


class Counters(Mapping[str, int]):
    """Read-only view of counter values, by key or attribute; an unknown name raises :class:`UnknownCounterError`."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self._values = {name: values.get(name, 0) for name in COUNTERS}

    def __getitem__(self, name: str) -> int:
        if name not in self._values:
            raise UnknownCounterError(name)
        return self._values[name]

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters({name: self[name] - earlier[name] for name in COUNTERS})

    def __repr__(self) -> str:
        moved = ", ".join(f"{name}={value}" for name, value in self._values.items() if value)
        return f"Counters({moved or 'all 0'})"


@dataclass
class CounterLog:
    """The live log behind :class:`Counters`; safe to move from several threads."""

    events: list[Event] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _began: float = field(default_factory=time.perf_counter, repr=False)

    def count(self, counter: str, cause: str, other: str = "") -> None:
        """Move ``counter`` by one because of ``cause``; ``other`` is the Dynamo backend, if not the one under test."""
        if counter not in COUNTERS:
            raise UnknownCounterError(counter)
        with self._lock:
            self.events.append(Event(counter, cause, time.perf_counter() - self._began, other))

    def mark(self) -> int:
        """Return a position to pass to :meth:`since`."""
        return len(self.events)

    def drop_since(self, mark: int) -> None:
        """Remove the events after ``mark``."""
        with self._lock:
            del self.events[mark:]

    def since(self, mark: int = 0) -> tuple[Event, ...]:
        """Return the events after ``mark``."""
        with self._lock:
            return tuple(self.events[mark:])

    def counters(self, mark: int = 0) -> Counters:
        """Return the counters moved since ``mark`` (all of them by default)."""
        return Counters(Counter(event.counter for event in self.since(mark)))


@dataclass(frozen=True)
class Bound:
    """An expected range of one counter, both ends included."""

    low: int
    high: int | None

    def admits(self, value: int) -> bool:
        """Say whether ``value`` lies in the range."""
        return value >= self.low and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {self.low}"
        return str(self.low) if self.low == self.high else f"at most {self.high}"


def at_most(n: int) -> Bound:
    """Expect a counter to move by no more than ``n``."""
    return Bound(0, _count(n))


def at_least(n: int) -> Bound:
    """Expect a counter to move by ``n`` or more."""
    return Bound(_count(n), None)


def bounds_of(expected: Mapping[str, int | Bound]) -> dict[str, Bound]:
    """Validate the keywords of ``expect``."""
    if not expected:
        raise TypeError(f"expect() needs at least one counter; known: {', '.join(COUNTERS)}")
    bounds = {}
    for name, value in expected.items():
        if name not in COUNTERS:
            raise UnknownCounterError(name)
        bounds[name] = value if isinstance(value, Bound) else Bound(_count(value), _count(value))
    return bounds


def check_expectation(bounds: Mapping[str, Bound], events: tuple[Event, ...]) -> None:
    """Raise :class:`CounterExpectationError` when ``events`` do not meet ``bounds``."""
    log = CounterLog(list(events))
    actual = log.counters()
    wrong = {name: bound for name, bound in bounds.items() if not bound.admits(actual[name])}
    if not wrong:
        return
    lines = [f"{name}: expected {bound}, got {actual[name]}" for name, bound in wrong.items()]
    raise CounterExpectationError("\n".join([*lines, "", "Counters that moved in this block:", *describe(events)]))


def describe(events: tuple[Event, ...]) -> list[str]:
    """Return one line per counter that moved, each followed by what caused its steps."""
    lines = []
    for name in COUNTERS:
        causes = [event.cause for event in events if event.counter == name]
        if causes:
            lines.append(f"  {name} = {len(causes)}")
            lines.extend(f"      {number}. {cause}" for number, cause in enumerate(causes, 1))
    return lines or ["  none"]


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"a counter is expected to be an int, at_most(n) or at_least(n), not {value!r}")
    if value < 0:
        raise ValueError(f"a counter never moves by a negative number, but {value} was expected")
    return value
