"""What compiles slower than in earlier runs: by phase, by region and by test, as ratios with their noise.

A run measures each test once, so a ratio alone says little. The noise of a test is how far it was from its own median
in earlier runs, from four of them on, and not less than how far the ratios of all tests are from each other. What many
tests have in common is known better: of a phase, and of a region, the median of the ratios of all tests counts, with
the interval of the sign test.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from pytest_regional._errors import RegionalError
from pytest_regional._phase_names import PHASES, TOTAL, UnknownPhaseError, checked_phase
from pytest_regional._ratios import Ratio, median_interval, spread_of
from pytest_regional._text import plural
from pytest_regional.report.history import Key, TimedRun

#: Seconds below which a time of one test is not compared: the clock of a machine that does other things is no better.
LEAST = 0.002

#: How many of its standard deviations a test's ratio may be off by chance, and from how many runs on it has its own.
_DEVIATIONS, _OWN_RUNS = 3, 4

#: Tests from which on the spread of their ratios is known, and the median of these has an interval of 99 %.
_MANY, _ERROR = 8, 0.005

#: What is needed to know noise, for messages.
NEEDED = f"{_OWN_RUNS} earlier runs, or {_MANY} tests"

#: Lines of one list.
_SHOWN = 10


class LimitError(RegionalError, ValueError):
    """A text that is no limit on compile times."""


@dataclass(frozen=True)
class Limit:
    """How much slower a phase may be: ``ratio`` times."""

    phase: str
    ratio: float

    def __str__(self) -> str:
        return f"{self.phase}:{(self.ratio - 1) * 100:g}%"

    @staticmethod
    def of(text: str) -> Limit:
        """Return the limit that ``20%`` or ``passes:20%`` says.

        Raises:
            LimitError: it says none; the message has the form.
        """
        phase, colon, percent = text.rpartition(":")
        found = re.fullmatch(r"(\d+(?:\.\d+)?)%", percent.strip())
        if found is None:
            raise LimitError(f"{text!r}: expected a percentage, such as 20%, or one of a phase, such as passes:20%")
        try:
            return Limit(checked_phase(phase.strip() if colon else None), 1 + float(found[1]) / 100)
        except UnknownPhaseError as error:
            raise LimitError(f"{text!r}: {error}") from error


@dataclass(frozen=True)
class Row:
    """One ratio of now to before.

    Attributes:
        what: what took the time: a test, a region, or how many tests together.
        phase: in which phase.
        ratio: the ratio with its interval, from 0 to infinity where the noise is not known.
        before: median of the earlier times, in seconds.
        now: the time in the later run.
    """

    what: str
    phase: str
    ratio: Ratio
    before: float
    now: float

    @property
    def known(self) -> bool:
        """Whether the noise is known."""
        return math.isfinite(self.ratio.high)

    def __str__(self) -> str:
        noise = str(self.ratio) if self.known else f"{self.ratio.value:.2f} (noise not known)"
        return f"{self.what}: {self.phase} {noise}, {self.now:.3f} s, {self.before:.3f} s before"


@dataclass
class SlowerTimes:
    """What changed in compile times.

    Attributes:
        runs: how many earlier runs the last one was compared with.
        notes: sentences about what was not compared, or with what.
        phases: of each phase, all tests together.
        regions: of each region and phase, all tests together.
        tests: of each test and phase.
        clock: that measured them, of :data:`CLOCK_NAMES`.
    """

    runs: int = 0
    notes: list[str] = field(default_factory=list)
    phases: list[Row] = field(default_factory=list)
    regions: list[Row] = field(default_factory=list)
    tests: list[Row] = field(default_factory=list)
    clock: str = "wall"

    def lines(self) -> Iterator[str]:
        """Yield what is certainly slower, below a table of the phases."""
        if self.phases:
            named = "compile times on the CPU clock" if self.clock == "cpu" else "compile times"
            yield f"{named}, compared with {plural(self.runs, 'run')} before:"
            yield from (f"  {row}" for row in self.phases)
        yield from self._list("slower regions", self.regions)
        yield from self._list("slower tests", self.tests)
        yield from self.notes

    def _list(self, title: str, rows: Iterable[Row]) -> Iterator[str]:
        slower = sorted((row for row in rows if row.ratio.low > 1), key=lambda row: -row.ratio.low)
        if slower:
            yield f"{title} ({len(slower)}):"
            yield from (f"  {row}" for row in slower[:_SHOWN])
            if len(slower) > _SHOWN:
                yield f"  and {len(slower) - _SHOWN} more"

    def decides(self, limit: Limit) -> bool:
        """Say whether the noise of anything in the phase of ``limit`` is known."""
        return any(row.known for row in self._in(limit.phase))

    def beyond(self, limit: Limit) -> list[Row]:
        """Return the rows that are certainly above ``limit``."""
        return [row for row in self._in(limit.phase) if row.ratio.low > limit.ratio]

    def _in(self, phase: str) -> list[Row]:
        return [row for row in (*self.phases, *self.regions, *self.tests) if row.phase == phase]


def slower_times(earlier: Sequence[TimedRun], new: TimedRun, clock: str = "wall") -> SlowerTimes:
    """Compare the compile times of ``new`` with those of ``earlier`` runs of the same machine, on one clock."""
    without = sum(bool(run.tests) and not run.on(clock).tests for run in (*earlier, new))
    earlier, new = [run.on(clock) for run in earlier], new.on(clock)
    alike = [run for run in earlier if run.tests and run.machine == new.machine]
    found = SlowerTimes(len(alike), list(_notes(earlier, alike, new)), clock=clock)
    if without:
        verbs = "has no times on the CPU clock and is" if without == 1 else "have no times on the CPU clock and are"
        found.notes.append(f"{plural(without, 'run')} {verbs} not compared")
    if not alike or not new.tests:
        return found
    regions: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for phase in (TOTAL, *PHASES):
        seen = {key: pair for key in new.tests if (pair := _times(alike, new, key, phase)) is not None}
        if not seen:
            continue
        ratios = {key: now / median(before) for key, (before, now) in seen.items()}
        together = _together(f"{plural(len(seen), 'test')}", phase, [(median(b), now) for b, now in seen.values()])
        found.phases.append(together)
        spread = spread_of(ratios.values()) if len(ratios) >= _MANY else None
        found.tests += [_of_test(key, phase, *seen[key], spread) for key in seen]
        for key in new.tests:
            for what, medians in _regions(alike, new, key, phase):
                regions.setdefault((what, phase), []).append(medians)
    found.regions = [_together(what, phase, pairs) for (what, phase), pairs in regions.items()]
    return found


def _notes(earlier: Sequence[TimedRun], alike: Sequence[TimedRun], new: TimedRun) -> Iterator[str]:
    timed = [run for run in earlier if run.tests]
    if not new.tests or not timed:
        if new.tests or timed:
            yield "compile times are not compared: only one side has them"
        return
    others = len(timed) - len(alike)
    if others:
        yield f"compile times of {plural(others, 'run')} on another machine are not compared"
    for name, version in new.versions.items():
        seen = dict.fromkeys(run.versions.get(name, "none") for run in alike)
        if alike and set(seen) != {version}:
            yield f"compile times are those of {name} {version}, and {', '.join(seen)} before"


def _times(earlier: Sequence[TimedRun], new: TimedRun, key: Key, phase: str) -> tuple[list[float], float] | None:
    """Return the times of a test in a phase, before and now, where they can be compared."""
    runs = [run.tests[key] for run in earlier if key in run.tests]
    if not runs or any(phase in one["not_measured"] for one in (*runs, new.tests[key])):
        return None
    before = [_seconds(one["phases"], phase) for one in runs]
    now = _seconds(new.tests[key]["phases"], phase)
    return (before, now) if min(*before, now) >= LEAST else None


def _regions(
    earlier: Sequence[TimedRun], new: TimedRun, key: Key, phase: str
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the regions of a test, with their median time in a phase before, and now."""
    runs = [run.tests[key]["regions"] for run in earlier if key in run.tests]
    for what, phases in new.tests[key]["regions"].items():
        before = [_seconds(regions[what], phase) for regions in runs if what in regions]
        now = _seconds(phases, phase)
        if before and min(*before, now) >= LEAST:
            yield what, (median(before), now)


def _seconds(phases: Mapping[str, float], phase: str) -> float:
    return sum(phases.values()) if phase == TOTAL else phases.get(phase, 0.0)


def _together(what: str, phase: str, pairs: Sequence[tuple[float, float]]) -> Row:
    """Return the median ratio of many tests, of median times before and times now."""
    ratio = median_interval([now / before for before, now in pairs], _ERROR)
    return Row(what, phase, ratio, sum(before for before, _ in pairs), sum(now for _, now in pairs))


def _of_test(key: Key, phase: str, before: Sequence[float], now: float, spread: float | None) -> Row:
    middle = median(before)
    own = spread_of(one / middle for one in before) if len(before) >= _OWN_RUNS else None
    known = [one for one in (own, spread) if one is not None]
    test, backend, device = key
    away = math.exp(_DEVIATIONS * max(known)) if known else math.inf
    ratio = now / middle
    return Row(f"{test} on {backend} ({device})", phase, Ratio(ratio, ratio / away, ratio * away), middle, now)
