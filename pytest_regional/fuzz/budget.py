"""How many programs a fuzz test or a campaign checks, or for how long; and the time that one program may take."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from pytest_regional._base import processes
from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.limits import GRACE, LEAST_SECONDS, MOST_SECONDS, ended, handling
from pytest_regional._base.text import duration, shown

_BUDGET_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
#: More than a machine checks in its life.
MOST_EXAMPLES = 1_000_000_000


@dataclass(frozen=True)
class Budget:
    """A number of programs, or seconds; the other is None.

    Attributes:
        examples: how many programs to check.
        seconds: how long to go on.
        fixed: whether every run is to draw the same programs.
    """

    examples: int | None = None
    seconds: float | None = None
    fixed: bool = False

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read ``"500"``, ``"30s"``, ``"10m"``, ``"2h"``, or the name of a profile.

        Raises:
            RegionalValueError: the text is none of these, or asks for nothing.
        """
        cleaned = text.strip().lower()
        if cleaned in PROFILES:
            return PROFILES[cleaned]
        match = re.fullmatch(r"([0-9]{1,12})|([0-9]{1,12}(?:\.[0-9]{1,9})?)([smh])", cleaned)
        if match is not None and match[1] and 1 <= int(match[1]) <= MOST_EXAMPLES:
            return cls(examples=int(match[1]))
        seconds = float(match[2]) * _BUDGET_UNITS[match[3]] if match is not None and match[2] else 0.0
        if LEAST_SECONDS <= seconds <= MOST_SECONDS:
            return cls(seconds=seconds)
        raise RegionalValueError(
            f"{shown(text)!r} is no budget: give a number of programs (500), a time (30s, 10m, 2h), or a profile "
            f"({', '.join(PROFILES)}); from 1 to {MOST_EXAMPLES} programs, from {LEAST_SECONDS:g}s to a year"
        )

    def share(self, number: int, shards: int) -> Budget:
        """Return the part of shard ``number`` of ``shards`` that run at the same time."""
        if self.examples is None:
            return self
        fewest, more = divmod(self.examples, shards)
        return Budget(fewest + (number < more), None, self.fixed)

    def part(self, parts: int) -> Budget:
        """Return one of ``parts`` equal parts, of programs at least one; a time stays as it is."""
        return self if self.examples is None else Budget(max(1, self.examples // parts), None, self.fixed)

    def start(self) -> Clock:
        """Return a clock that runs from now."""
        return Clock(self, time.monotonic())

    def __str__(self) -> str:
        if self.examples is not None:
            return f"{self.examples} programs"
        return duration(self.seconds or 0.0)


#: Budgets by name: what a pull request can wait for, and what a night has time for.
PROFILES = {"ci": Budget(examples=25, fixed=True), "nightly": Budget(seconds=1800.0)}


#: What comes last in a budget of time may still take so long: a finding that is not made small is hard to read.
LEAST_BUDGET = 10.0


@dataclass
class Clock:
    """A budget that is being spent."""

    budget: Budget
    begun: float
    spent: int = 0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.begun

    def time_for(self, seconds: float) -> float:
        """Return how long something that would like ``seconds`` may take: what is left, and a little in any case."""
        if self.budget.seconds is None:
            return seconds
        return min(seconds, max(self.budget.seconds - self.seconds, LEAST_BUDGET))

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        if self.budget.examples is not None:
            return self.spent >= self.budget.examples
        return self.seconds >= (self.budget.seconds or 0.0)


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`RegionalTimeoutError` inside once it used ``seconds`` of processor time, and end what it started.

    Processes that it started count, and other work on the machine does not. What uses less than a hundredth of a core
    for ``seconds`` of the clock waits for something that does not come, and is interrupted too. Uses ``SIGALRM``, as
    :func:`time_limit` does, and like that does nothing without it. Where code of another language lets no handler run
    for four times as long and 30 times :data:`GRACE`, by the clock, the process ends, with the stacks of all threads.
    """
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before, begun, seen = processes.descendants(), processes.cpu_seconds_of(os.getpid()), time.monotonic()
    last, longest = begun, 4 * seconds + 30 * GRACE

    def look(signum: int, frame: FrameType | None) -> None:
        nonlocal last, seen
        faulthandler.dump_traceback_later(longest, exit=True, file=2)
        used, now = processes.cpu_seconds_of(os.getpid()), time.monotonic()
        if used - begun >= seconds:
            raise ended(f"still running after {seconds:g} seconds of processor time", before, frame)
        if now - seen >= seconds:
            if used - last < (now - seen) / 100:
                raise ended(f"waiting for {seconds:g} seconds, without use of a processor", before, frame)
            last, seen = used, now

    with handling(look, signal.SIGALRM):
        try:
            faulthandler.dump_traceback_later(longest, exit=True, file=2)
            signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
