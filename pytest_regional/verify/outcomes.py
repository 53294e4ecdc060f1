"""What was found out about a property of a kernel, and kept for other processes: bytes under a key, in a given store.

Kept is what another run would find out as well: all is proved, or what is not lies outside of what is modelled.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import z3

from pytest_regional._base.cache_keys import own_code
from pytest_regional._base.errors import RegionalError
from pytest_regional._torch.triton import code_keys

PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"

MEMORY, RACES, COVERAGE, BUFFERS = "memory", "races", "coverage", "buffers"


class NotVerifiableError(RegionalError):
    """Part of a kernel, or of the code that launches it, is outside of what is proved; the message names it.

    Attributes:
        final: False where z3 does not know, or not in time; with more time it might.
        model: values of z3 for which what is asked may not hold, where there are some.
    """

    def __init__(self, message: str, *, final: bool = True, model: z3.ModelRef | None = None) -> None:
        super().__init__(message)
        self.final, self.model = final, model


@dataclass(frozen=True)
class Counterexample:
    """Values with which a property does not hold.

    Attributes:
        sizes: the program's symbolic sizes, by name.
        programs: places in the grid: one, or the two that meet.
        loaded: for each argument whose elements matter: element number to value; None stands for all others.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    programs: tuple[tuple[int, int, int], ...] = ()
    loaded: Mapping[str, Mapping[int | None, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{name} = {value}" for name, value in sorted(self.sizes.items())]
        places = list(dict.fromkeys(self.programs))
        if places:
            parts.append(f"program{'s' if len(places) > 1 else ''} {' and '.join(map(str, places))}")
        for argument, values in self.loaded.items():
            elements = [f"{argument}[{place}] = {value}" for place, value in values.items() if place is not None]
            parts += elements or [f"all of {argument} {values.get(None, 0)}"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Outcome:
    """One property of one kernel.

    Attributes:
        property: MEMORY, RACES, COVERAGE or BUFFERS.
        verdict: PROVED, REFUTED or UNKNOWN.
        reason: for all but PROVED: what was found, or why nothing was.
        seconds: how long it took.
        counterexample: for REFUTED.
        final: whether another run, with more time or memory, would find out the same.
    """

    property: str
    verdict: str
    reason: str = ""
    seconds: float = 0.0
    counterexample: Counterexample | None = None
    final: bool = True


class Store(Protocol):
    """Where to keep bytes; it returns what it was given, or nothing."""

    def read(self, key: str) -> bytes | None:
        """Return what is kept under ``key``."""

    def keep(self, key: str, content: bytes) -> None:
        """Keep ``content`` under ``key``, if that is possible."""


def key_of(digest: str) -> str:
    """Return the key of a kernel's outcomes: of what is asked, and of the code that answers."""
    return hashlib.sha256(
        "\0".join(["verified", digest, *_versions(), own_code("emulation", "verify")]).encode()
    ).hexdigest()


@functools.cache
def _versions() -> tuple[str, ...]:
    return (platform.python_version(), z3.get_full_version(), *code_keys())


def keep(store: Store, digest: str, outcomes: Sequence[Outcome], seconds: float) -> None:
    """Keep what was found out about a kernel, and how long it took, if another run would find out the same."""
    if all(outcome.final and outcome.verdict in (PROVED, UNKNOWN) for outcome in outcomes):
        fields = [[one.property, one.verdict, one.reason, one.seconds] for one in outcomes]
        store.keep(key_of(digest), json.dumps([seconds, fields]).encode())


def kept(store: Store, digest: str) -> tuple[tuple[Outcome, ...], float] | None:
    """Return what another process found out about a kernel, and the seconds that it took; None if nothing is kept."""
    content = store.read(key_of(digest))
    if content is None:
        return None
    try:
        seconds, fields = json.loads(content)
        outcomes = tuple(Outcome(property, verdict, reason, taken) for property, verdict, reason, taken in fields)
        for one in outcomes:
            texts = isinstance(one.property, str) and isinstance(one.reason, str)
            if not texts or one.verdict not in (PROVED, UNKNOWN) or not isinstance(one.seconds, float):
                return None
        return (outcomes, float(seconds)) if {MEMORY, RACES} <= {one.property for one in outcomes} else None
    except (ValueError, TypeError):
        return None
