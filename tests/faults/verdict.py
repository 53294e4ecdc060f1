"""What became of a mutant: noticed by what was meant to notice it, by something else, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.faults.planting import Mutant

ANY = "*"

#: Exceptions that say that time was up, which proves nothing.
TIMEOUTS = ("TimeoutError", "RegionalTimeoutError", "TimeoutExpired")


@dataclass(frozen=True)
class Alarm:
    """Something that complained: an oracle or the id of a test, and what as.

    Attributes:
        source: name of the oracle, or id of the test.
        error: type of the exception.
        text: its first line, or the origin that the oracle tells.
        example: number of the program, from 1; 0 for tests.
        mode: of the fuzzer; empty for tests.
    """

    source: str
    error: str
    text: str = ""
    example: int = 0
    mode: str = ""

    @property
    def is_timeout(self) -> bool:
        """Whether it only says that time was up."""
        said = ("--regional-timeout", "did not answer within")
        return self.error in TIMEOUTS or any(words in self.text for words in said)


@dataclass(frozen=True)
class Verdict:
    """What one half of the detection, suites or fuzzer, found out about one mutant.

    Attributes:
        outcome: ``killed``, ``survived``, ``timeout``, ``never called`` (what the mutant replaces is not used: an
            error of the mutant, not a survivor), ``not asked`` (nothing is meant to notice it).
        kill: the alarm that counts.
        others: alarms that do not.
        tried: tests or programs that ran.
        seconds: of the clock for suites, of processor time for programs.
    """

    outcome: str
    kill: Alarm | None = None
    others: tuple[Alarm, ...] = ()
    tried: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def as_data(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Verdict:
        """Return the verdict that :meth:`as_data` described."""
        kill = Alarm(**data["kill"]) if data["kill"] else None
        others = tuple(Alarm(**other) for other in data["others"])
        return cls(data["outcome"], kill, others, data["tried"], data["seconds"], tuple(data["notes"]))


def is_intended_oracle(mutant: Mutant, alarm: Alarm) -> bool:
    """Return whether an oracle that complained is one that is meant to."""
    return alarm.source in mutant.oracles and not alarm.is_timeout


def is_intended_test(mutant: Mutant, alarm: Alarm) -> bool:
    """Return whether a test that failed is one that is meant to, and failed by what it asserts."""
    meant = alarm.source.partition("::")[0] in mutant.suites
    return meant and not alarm.is_timeout and (ANY in mutant.errors or alarm.error in mutant.errors)


def verdict_of_tests(mutant: Mutant, alarms: Iterable[Alarm], *, called: bool, tried: int, seconds: float) -> Verdict:
    """Return the verdict for the failures of a run of the suites."""
    found = tuple(alarms)
    kill = next((alarm for alarm in found if is_intended_test(mutant, alarm)), None)
    others = tuple(alarm for alarm in found if alarm is not kill)
    if not called:
        outcome = "never called"
    elif kill:
        outcome = "killed"
    else:
        outcome = "timeout" if any(alarm.is_timeout for alarm in others) else "survived"
    return Verdict(outcome, kill if outcome == "killed" else None, others, tried, round(seconds, 1))
