"""What is kept of the runs of compiled graphs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Timing:
    """One compiled graph, and the seconds of each of its runs."""

    nodes: int
    seconds: list[float] = field(default_factory=list)


_TIMINGS: list[Timing] = []


def timings() -> tuple[Timing, ...]:
    """Return what was kept since the process began, or since ``forget``."""
    return tuple(_TIMINGS)


def forget() -> None:
    """Drop what was kept."""
    _TIMINGS.clear()


def timed(call: Callable[..., Any], nodes: int) -> Callable[..., Any]:
    """Return ``call`` with a clock around it. Compiled graphs take their inputs as one list, so this does too."""
    timing = Timing(nodes)
    _TIMINGS.append(timing)

    def timed_call(inputs: list[Any]) -> Any:
        started = time.perf_counter()
        try:
            return call(inputs)
        finally:
            timing.seconds.append(time.perf_counter() - started)

    timed_call._boxed_call = True  # type: ignore[attr-defined]
    return timed_call
