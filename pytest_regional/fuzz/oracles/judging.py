"""Judge one program by all laws: compiled once for all that need no other compile."""

from __future__ import annotations

import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from pytest_regional._text import unknown_name
from pytest_regional.fuzz.lanes import LANES, in_lane
from pytest_regional.fuzz.oracles import borders, caching, configs, counters, determinism, modes, parity, plan
from pytest_regional.fuzz.oracles.law import Judgement, Law, NoClaim
from pytest_regional.fuzz.oracles.trial import Trial
from pytest_regional.fuzz.program import Program
from pytest_regional.harness.emulating import unsupported_reason
from pytest_regional.harness.regional import Regional

_MODULES = (parity, borders, configs, plan, counters, modes, caching, determinism)

#: All laws by name, in the order in which they are judged.
LAWS: Mapping[str, Law] = MappingProxyType({law.name: law for module in _MODULES for law in module.LAWS})


class UnknownLawError(LookupError):
    """A name that is no law's."""


def judge(
    regional: Regional,
    program: Program,
    *,
    lane: str = "full",
    laws: Collection[str] | None = None,
    blame: bool = True,
) -> Judgement:
    """Judge ``program`` on a backend, in fresh caches.

    Args:
        regional: the harness, inside of its context; use it for nothing else meanwhile.
        program: what to judge.
        lane: how much of a compile really happens; see :mod:`pytest_regional.fuzz.lanes`.
        laws: names of the laws to judge by. By default all, those that compile once more on some programs only, which
            the program's identity decides: the same program is always judged alike.
        blame: whether a difference from eager is followed up to a region, which compiles several times.

    Raises:
        LawBrokenError: the program breaks a law; the first one in the order of ``LAWS``.
        BadProgramError: the program fails in eager.
        UnknownLawError: a name in ``laws`` that is none.
        LaneError: the backend or the device cannot take that lane.
    """
    chosen = _chosen(laws)
    held: list[str] = []
    skipped = {law.name: reason for law in chosen if (reason := _why_not(law, regional, lane))}
    if laws is None:
        skipped = {law.name: _TURN for law in chosen if not _has_turn(law, program)} | skipped
    started = time.perf_counter()
    spent: dict[str, float] = {}
    wanted = [law for law in chosen if law.name not in skipped]
    trial = Trial(regional, program, lane, blame=blame, checks_borders=any(law.name == "borders" for law in wanted))
    with in_lane(regional, lane):
        _ = trial.cases
        try:
            with _timed(spent, "compile"):
                _ = trial.cold
            for law in wanted:
                with _timed(spent, law.name):
                    _check(law, trial, held, skipped)
        except AssertionError as error:
            reason = unsupported_reason(regional, error) or _refused(trial)
            if not reason:
                raise
            skipped |= {law.name: reason for law in wanted if law.name not in held}
    return Judgement(tuple(held), skipped, time.perf_counter() - started, spent)


def _chosen(names: Collection[str] | None) -> list[Law]:
    for name in names or ():
        if name not in LAWS:
            raise UnknownLawError(unknown_name("law", name, LAWS))
    return [law for law in LAWS.values() if names is None or law.name in names]


_TURN = "another program's turn: it compiles once more"


def _has_turn(law: Law, program: Program) -> bool:
    """Return whether ``law`` is judged on ``program`` where nobody chose it."""
    return law.every == 1 or zlib.crc32(f"{law.name} {program.identity}".encode()) % law.every == 0


def _why_not(law: Law, regional: Regional, lane: str) -> str:
    """Return why ``law`` is not judged, whatever the program; empty where it is."""
    if lane in LANES and lane not in law.lanes:
        return f"it says nothing in lane {lane!r}"
    for capability in law.requires:
        support = regional.spec.supports(capability)
        if not support:
            return f"backend {regional.backend!r} disclaims {capability}: {support.reason}"
    return ""


def _refused(trial: Trial) -> str:
    error = trial.cold.error
    return unsupported_reason(trial.regional, error) if error is not None else ""


def _check(law: Law, trial: Trial, held: list[str], skipped: dict[str, str]) -> None:
    try:
        law.check(trial)
    except NoClaim as why:
        skipped[law.name] = str(why)
    else:
        held.append(law.name)


@contextmanager
def _timed(spent: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        spent[name] = time.perf_counter() - started
