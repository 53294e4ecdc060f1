"""Lines of generated code that a failure concerns: launches, and the kernels that they launch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_regional.harness.codegen.events import (
    Alias,
    CodeEvent,
    Events,
    ExternCall,
    KernelLaunch,
    Return,
    UnreadableCodeError,
)
from pytest_regional.harness.codegen.kernels import KernelDefinition, Wrapper

#: Of one failure; the first are the most likely ones.
MOST = 8


class Source(Protocol):
    """The part of :class:`~pytest_regional.harness.record.GeneratedSource` that is used here."""

    @property
    def graph(self) -> str:
        """Its graph."""

    @property
    def regions(self) -> tuple[str, ...]:
        """Names of its regions."""

    @property
    def text(self) -> str:
        """The code."""

    @property
    def events(self) -> Events:
        """What it does."""


@dataclass(frozen=True)
class CodePlace:
    """A line of generated code.

    Attributes:
        source: the code.
        line: from 1.
        what: what is on that line, for a person.
    """

    source: Source
    line: int
    what: str


def places_of(source: Source, events: Iterable[CodeEvent]) -> list[CodePlace]:
    """Return the lines of ``events``, each followed by the kernel that it launches, each line once."""
    kernels = Wrapper.of(source.text).kernels
    return list({place.line: place for event in events for place in _of_event(source, event, kernels)}.values())


def _of_event(source: Source, event: CodeEvent, kernels: Mapping[str, KernelDefinition]) -> Iterator[CodePlace]:
    ops = ", ".join(dict.fromkeys(op.name for op in event.ops or ()))
    kernel = event.kernel if isinstance(event, KernelLaunch) else ""
    yield CodePlace(source, event.line, f"{event.kind} {kernel or event.text}" + (f" computes {ops}" if ops else ""))
    if kernel in kernels:
        yield CodePlace(source, kernels[kernel].line, f"{kernels[kernel].language.partition('_')[0]} code of {kernel}")


def places_of_results(
    sources: Sequence[Source], *, backward: bool, regions: Collection[str], wrong: Collection[int], outputs: int
) -> tuple[CodePlace, ...]:
    """Return the launches and calls that make what the code returns.

    Args:
        sources: the code of one program.
        backward: whether gradients are wrong, and no output.
        regions: those to blame; empty if none is known.
        wrong: numbers of the wrong ones among the tensors that the program returns. Looked at where the code returns
            these and nothing else; a forward graph also returns what its backward needs.
        outputs: how many tensors the program returns.
    """
    kinds = ("backward",) if backward else ("forward", "inference")
    mine = [source for source in sources if source.graph in kinds] or list(sources)
    mine = [source for source in mine if not regions or set(regions) & set(source.regions)] or mine
    found: list[CodePlace] = []
    for source in mine:
        try:
            events = source.events
            returned = [name for event in events if isinstance(event, Return) for name in event.reads]
            if len(mine) == 1 and source.graph == "inference" and len(returned) == outputs:
                returned = [returned[number] for number in sorted(wrong)] or returned
            found += places_of(source, _makers(events, returned))
        except UnreadableCodeError:
            continue  # a C++ wrapper: its launches cannot be told
    return tuple(found[:MOST])


def _makers(events: Sequence[CodeEvent], names: Iterable[str]) -> list[CodeEvent]:
    """Return the last launch or call that writes each of ``names``, through aliases, in order."""
    makers = {id(event): event for name in names for event in _maker(events, name)}
    return sorted(makers.values(), key=lambda event: event.line)


def _maker(events: Sequence[CodeEvent], name: str) -> Iterator[CodeEvent]:
    for event in reversed(events):
        if name in event.writes and isinstance(event, KernelLaunch | ExternCall):
            yield event
            return
        if name in event.writes and isinstance(event, Alias) and event.reads:
            name = event.reads[0]
