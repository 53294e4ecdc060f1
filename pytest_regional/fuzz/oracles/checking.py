"""Judge one program by all laws: compiled once for all that need no other compile."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from pytest_regional._errors import RegionalError
from pytest_regional._text import unknown_name
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.modes import LANES, in_lane
from pytest_regional.fuzz.oracles import caching, order, parity, plan, region_boundary, reruns
from pytest_regional.fuzz.oracles.example_run import Trial
from pytest_regional.fuzz.oracles.oracle import Judgement, Law, LawBrokenError, NoClaim
from pytest_regional.harness.devices.emulated import unsupported_reason
from pytest_regional.harness.regional import Regional

# Those of caches look for what the first compile stored; the later ones begin with empty caches.
_TABLES = (
    parity.LAWS,
    region_boundary.LAWS,
    parity.OF_CONFIGS,
    plan.LAWS,
    caching.OF_COUNTERS,
    caching.LAWS,
    reruns.LAWS,
    parity.OF_MODES,
    order.LAWS,
    reruns.OF_DETERMINISM,
    reruns.OF_THREADS,
)

#: All laws by name, in the order in which they are judged.
LAWS: Mapping[str, Law] = MappingProxyType({law.name: law for table in _TABLES for law in table})


class UnknownLawError(RegionalError, LookupError):
    """A name that is no law's."""


Known = Callable[[LawBrokenError], bool]


def judge(
    regional: Regional,
    program: Program,
    *,
    lane: str = "full",
    laws: Collection[str] | str | None = None,
    blame: bool = True,
    known: Known | None = None,
) -> Judgement:
    """Judge ``program`` on a backend, in fresh caches.

    Args:
        regional: the harness, inside of its context; use it for nothing else meanwhile.
        program: what to judge.
        lane: how much of a compile really happens; see :mod:`pytest_regional.fuzz.modes`.
        laws: names of the laws to judge by, or one name. By default all, those that compile once more on some programs
            only, which the program's source decides: the same program is always judged alike.
        blame: whether a difference from eager is followed up to a region, which compiles several times.
        known: says whether a broken law is known to the caller; such an error is returned, and the other laws are
            judged as well. A program that does not compile is judged by no other law.

    Raises:
        LawBrokenError: the program breaks a law; the first one in the order of ``LAWS``.
        BadProgramError: the program fails in eager.
        UnknownLawError: a name in ``laws`` that is none, or no name at all.
        LaneError: the backend or the device cannot take that lane.
    """
    judging = _Judging(regional, program, lane, _chosen(laws), blame, known or (lambda error: False))
    if laws is None:
        judging.skipped |= {law.name: _TURN for law in LAWS.values() if not _has_turn(law, program)}
    return judging.run()


class _Judging:
    """One call of :func:`judge`."""

    def __init__(
        self, regional: Regional, program: Program, lane: str, laws: Sequence[Law], blame: bool, known: Known
    ) -> None:
        self.regional, self.lane, self.laws, self.known = regional, lane, laws, known
        self.skipped = {law.name: reason for law in laws if (reason := _why_not(law, regional, lane))}
        self.held: list[str] = []
        self.found: list[LawBrokenError] = []
        self.spent: dict[str, float] = {}
        borders = any(law.name == "borders" for law in laws) and "borders" not in self.skipped
        self.trial = Trial(regional, program, lane, blame=blame, checks_borders=borders)

    def run(self) -> Judgement:
        started = time.perf_counter()
        with in_lane(self.regional, self.lane):
            with self._timed("eager"):
                _ = self.trial.cases
            with self._timed("compile"):
                _ = self.trial.cold
            for law in self.laws:
                if law.name not in self.skipped:
                    self._judge_by(law)
        seconds = time.perf_counter() - started
        return Judgement(tuple(self.held), self.skipped, seconds, self.spent, tuple(self.found))

    def _judge_by(self, law: Law) -> None:
        try:
            with self._timed(law.name):
                law.check(self.trial)
        except NoClaim as why:
            self.skipped[law.name] = str(why)
        except LawBrokenError as error:
            self._broken(law, error)
        else:
            self.held.append(law.name)

    def _broken(self, law: Law, error: LawBrokenError) -> None:
        refused = unsupported_reason(self.regional, error)
        if not refused and law.name in ("compiles", "parity"):
            error.without_backend = parity.goes_wrong_without_backend(self.trial, error)
        if refused:
            self.skipped[law.name] = refused
        elif self.known(error):
            self.found.append(error)
        else:
            raise error
        if law.name == "compiles":
            why = "the program does not compile"
            self.skipped |= {other.name: refused or why for other in self.laws if other.name != law.name}

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.spent[name] = time.perf_counter() - started


def _chosen(names: Collection[str] | str | None) -> list[Law]:
    names = (names,) if isinstance(names, str) else names
    if names is not None and not names:
        raise UnknownLawError("no law to judge by: leave laws out for all of them")
    for name in names or ():
        if name not in LAWS:
            raise UnknownLawError(unknown_name("law", name, LAWS))
    return [law for law in LAWS.values() if names is None or law.name in names]


_TURN = "another program's turn: it compiles once more"


def _has_turn(law: Law, program: Program) -> bool:
    """Return whether ``law`` is judged on ``program`` where nobody chose it."""
    return law.every == 1 or zlib.crc32(f"{law.name}\n{program.source}".encode()) % law.every == 0


def _why_not(law: Law, regional: Regional, lane: str) -> str:
    """Return why ``law`` is not judged, whatever the program; empty where it is."""
    if lane in LANES and lane not in law.lanes:
        return f"it says nothing in lane {lane!r}"
    for capability in law.requires:
        support = regional.supports(capability)
        if not support:
            return f"backend {regional.backend!r} disclaims {capability}: {support.reason}"
    return ""
