"""How long to fuzz: a number of programs or a time. Imports no torch: options are checked with it."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from pytest_regional._base import limits
from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import duration, shown

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
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
        match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([smh]?)", cleaned)
        if match is None or ("." in match[1] and not match[2]):
            raise _no_budget(text)
        number = float(match[1])
        if match[2]:
            seconds = number * _UNITS[match[2]]
            if not limits.LEAST_SECONDS <= seconds <= limits.MOST_SECONDS:
                raise _no_budget(text)
            return cls(seconds=seconds)
        if not 1 <= number <= MOST_EXAMPLES:
            raise _no_budget(text)
        return cls(examples=int(number))

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


_EXPECTED = (
    f"give a number of programs (500), a time (30s, 10m, 2h), or a profile ({', '.join(PROFILES)}); "
    f"from 1 to {MOST_EXAMPLES} programs, from {limits.LEAST_SECONDS:g}s to a year"
)


def _no_budget(text: str) -> RegionalValueError:
    return RegionalValueError(f"{shown(text)!r} is no budget: {_EXPECTED}")


#: What comes last in a budget of time may still take so long: a finding that is not made small is hard to read.
LEAST_SECONDS = 10.0


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
        return min(seconds, max(self.budget.seconds - self.seconds, LEAST_SECONDS))

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        if self.budget.examples is not None:
            return self.spent >= self.budget.examples
        return self.seconds >= (self.budget.seconds or 0.0)


#: The directory of crash markers, in the directory of findings.
MARKERS = "checking"


def crash_marker(findings: Path, name: str) -> Path:
    """Return the file that holds what this process checks as shard ``name``; it stays when the process crashes."""
    markers = findings / MARKERS
    markers.mkdir(parents=True, exist_ok=True)
    return markers / f"{name}-{os.getpid()}.json"


def crash_markers(findings: Path, since: float = 0.0) -> list[Path]:
    """Return the markers of processes that ended, written after ``since``, in seconds since the epoch."""
    markers = sorted((findings / MARKERS).glob("*.json"))
    return [one for one in markers if one.is_file() and one.stat().st_mtime >= since and not _is_alive(one)]


def _is_alive(marker: Path) -> bool:
    process = marker.stem.rpartition("-")[2]
    try:
        os.kill(int(process), 0)
    except (OverflowError, ProcessLookupError, ValueError):  # no process has this number
        return False
    except PermissionError:
        return True
    return True
