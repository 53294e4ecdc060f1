"""The oracles that every program has to keep on every backend, and :func:`check`, which checks a program against them.

Modules, with their oracles: ``parity`` (compiles, parity, configs, inference, refused, region_boundary), ``order``
(plan, region_order, order), ``caching`` (counters, warm, annotations_in_key, uuid_in_key), ``rewrites``,
``integer_twin``, ``further`` (alias_probe, input_forms, further_calls, own_random, verified, results_kept,
retained_backward, determinism, threads). ``example_run`` says what an oracle is, and holds what is computed once for
all of them; ``watching`` records what the backend does. ``docs/fuzzing-oracles.md`` states the oracles. A new one is a
row of ``ORACLES`` in one of these modules.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import unknown_name
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.oracles import caching, further, integer_twin, order, parity, rewrites
from pytest_regional.fuzz.oracles.example_run import (
    AtenRun,
    CheckResult,
    ExampleRun,
    NoClaim,
    Oracle,
    OracleViolationError,
)
from pytest_regional.fuzz.settings import MODES, in_mode, settings_applied
from pytest_regional.harness.devices.emulated import unsupported_reason
from pytest_regional.harness.parity.report import BadProgramError
from pytest_regional.harness.regional import Regional

_MODULES = (caching, further, integer_twin, order, parity, rewrites)
_ALL = sorted((oracle for module in _MODULES for oracle in module.ORACLES), key=lambda oracle: oracle.place)

#: All oracles by name, in the order in which they are checked.
ORACLES: Mapping[str, Oracle] = MappingProxyType({oracle.name: oracle for oracle in _ALL})


Known = Callable[[OracleViolationError], bool]


def check(
    regional: Regional,
    program: Program,
    *,
    mode: str = "native",
    oracles: Collection[str] | str | None = None,
    blame: bool = True,
    known: Known | None = None,
) -> CheckResult:
    """Check ``program`` on a backend, in fresh caches.

    Args:
        regional: the harness, inside of its context; use it for nothing else meanwhile.
        program: what to check.
        mode: how much of a compile really happens; see :mod:`pytest_regional.fuzz.settings`.
        oracles: names of the oracles to check, or one name. By default all; those that compile once more on some
            programs only, by the program's source: the same program is always checked alike.
        blame: whether a difference from eager is followed up to a region, which compiles several times.
        known: returns whether a violation is known to the caller; such an error is returned, and the other oracles are
            checked as well. A program that does not compile is checked against no other oracle.

    Raises:
        OracleViolationError: the program violates an oracle; the first one in the order of ``ORACLES``.
        BadProgramError: the program fails in eager.
        RegionalValueError: a name in ``oracles`` that is none, or no name at all, or a mode that the backend or the
            device cannot take.
    """
    checking = _Checking(regional, program, mode, _chosen(oracles), blame, known or (lambda error: False))
    if oracles is None:
        for oracle in ORACLES.values():
            if not oracle.every:
                checking.skipped[oracle.name] = "checked where it is named"
            elif zlib.crc32(f"{oracle.name}\n{program.source}".encode()) % oracle.every:
                checking.skipped[oracle.name] = "checked on some programs only: it compiles once more"
    return checking.run()


class _Checking:
    """One call of :func:`check`."""

    def __init__(
        self, regional: Regional, program: Program, mode: str, oracles: Sequence[Oracle], blame: bool, known: Known
    ) -> None:
        self.regional, self.mode, self.oracles, self.known = regional, mode, oracles, known
        self.skipped = {oracle.name: reason for oracle in oracles if (reason := _why_not(oracle, regional, mode))}
        self.held: list[str] = []
        self.found: list[OracleViolationError] = []
        self.spent: dict[str, float] = {}
        self._mark = len(regional.observer.sources)
        checked = {oracle.name for oracle in oracles} - self.skipped.keys()
        boundaries = "region_boundary" in checked
        make = AtenRun if mode == "aten" else ExampleRun
        self.example = make(regional, program, mode, blame=blame, checks_boundary=boundaries)

    def run(self) -> CheckResult:
        started = time.perf_counter()
        if self.regional.verification is not None:
            self.regional.verification.forget()
        with in_mode(self.regional, self.mode), settings_applied(self.example.program.settings):
            if any(oracle.every for oracle in self.oracles):
                try:
                    with self._timed("eager"):
                        _ = self.example.expected
                    with self._timed("compile"):
                        _ = self.example.cold
                except NoClaim as why:
                    self.skipped = {**{oracle.name: str(why) for oracle in self.oracles}, **self.skipped}
            for oracle in self.oracles:
                if oracle.name in self.skipped:
                    continue
                try:
                    with self._timed(oracle.name):
                        oracle.check(self.example)
                except NoClaim as why:
                    self.skipped[oracle.name] = str(why)
                except OracleViolationError as error:
                    self._broken(oracle, error)
                else:
                    self.held.append(oracle.name)
        seconds = time.perf_counter() - started
        return CheckResult(tuple(self.held), self.skipped, seconds, self.spent, tuple(self.found))

    def _broken(self, oracle: Oracle, error: OracleViolationError) -> None:
        made = self.regional.observer.sources[self._mark :]
        error.sources = tuple({source.text: source for source in made}.values())
        refused = unsupported_reason(self.regional, error)
        if not refused and oracle.name in ("compiles", "parity"):
            error.without_backend = parity.goes_wrong_without_backend(self.example, error)
        elif not refused and oracle.fails_in_capture:
            # Whether AOTAutograd alone, which compiles nothing, violates the oracle with the same origin.
            with parity.capture_alone(self.example) as alone, contextlib.suppress(NoClaim):
                try:
                    oracle.check(alone)
                except OracleViolationError as found:
                    error.without_backend = found.origin == error.origin
        if refused:
            self.skipped[oracle.name] = refused
        elif self.known(error):
            self.found.append(error)
        else:
            raise error
        if oracle.name == "parity":
            why = refused or "the program differs from eager already"
            self.skipped |= {other.name: why for other in ORACLES.values() if other.after_parity}
        if oracle.name == "compiles":
            why = refused or "the program does not compile"
            self.skipped |= {other.name: why for other in self.oracles if other.name != oracle.name}

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.spent[name] = time.perf_counter() - started


def _chosen(names: Collection[str] | str | None) -> list[Oracle]:
    names = (names,) if isinstance(names, str) else names
    if names is not None and not names:
        raise RegionalValueError("no oracle to check: leave oracles out for all of them")
    for name in names or ():
        if name not in ORACLES:
            raise RegionalValueError(unknown_name("oracle", name, ORACLES))
    return [oracle for oracle in ORACLES.values() if names is None or oracle.name in names]


def _why_not(oracle: Oracle, regional: Regional, mode: str) -> str:
    """Return why ``oracle`` is not checked, whatever the program; empty where it is."""
    if mode in MODES and mode not in oracle.modes:
        return f"it says nothing in mode {mode!r}"
    for capability in oracle.requires:
        support = regional.supports(capability)
        if not support:
            return f"backend {regional.backend!r} disclaims {capability}: {support.reason}"
    return ""


__all__ = ["ORACLES", "BadProgramError", "CheckResult", "Oracle", "OracleViolationError", "RegionalValueError", "check"]
