"""GPU streams in a wrapper: launches on one run in order, launches on two only where events or waits say so."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_regional.harness.codegen.events import CodeEvent, StreamSync

DEFAULT = ""
"""The stream that is current when the wrapper is called; wrappers name it only where there are others."""

# What a wrapper calls to get the stream of a user, by number (torch 2.13, and 2.15).
STREAM_GETTERS = ("get_external_object_by_index", "_get_stream_by_index")
SYNCHRONIZATIONS = "streams."


def is_ordered(events: Sequence[CodeEvent], first: int, second: int) -> bool:
    """Say whether the launch at ``first`` has ended on the GPU when that at ``second``, further down, begins."""
    waiting, marks = _Waiting(events[first].stream), frozenset[str]()
    for event in events[first + 1 : second]:
        if isinstance(event, StreamSync):
            marks = waiting.after(event, marks, streams_of(events))
    return waiting.holds(events[second].stream)


def streams_of(events: Sequence[CodeEvent]) -> frozenset[str]:
    """Return the streams on which something runs."""
    return frozenset(event.stream for event in events)


class _Waiting:
    """The streams on which whatever follows runs after one launch."""

    def __init__(self, stream: str) -> None:
        self._streams = {stream}
        self._everywhere = False

    def holds(self, stream: str) -> bool:
        return self._everywhere or stream in self._streams

    def after(self, sync: StreamSync, marks: frozenset[str], known: frozenset[str]) -> frozenset[str]:
        """Take ``sync`` into account; returns the events whose recording comes after the launch."""
        arguments = [*sync.arguments, "", ""]
        first, second = arguments[0], _named(arguments[1], known)
        if sync.action == "record_event":
            return marks | {first} if self.holds(second) else marks - {first}
        if sync.action == "wait_event" and first in marks:
            self._streams.add(second)
        elif sync.action == "wait_stream" and self.holds(second):
            self._streams.add(_named(first, known))
        # Those that the host waits in: whatever is launched afterwards comes after.
        waited = {
            "synchronize_event": first in marks,
            "synchronize_stream": self.holds(_named(first, known)),
            "synchronize_device": True,
        }
        self._everywhere |= waited.get(sync.action, False)
        return marks


def _named(index: str, known: frozenset[str]) -> str:
    """Return the stream of that number; a number that no ``with`` names is that of the stream around the wrapper."""
    return index if index in known else DEFAULT
