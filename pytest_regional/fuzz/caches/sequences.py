"""Sequences of cache operations as plain data: compiles, restarts, new processes, damaged files, one after the other.

After each compile the counters must say what :class:`~pytest_regional.fuzz.caches.model.CacheModel` predicts, and the
values must be those of eager.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from pytest_regional._base.cache_keys import KEYS
from pytest_regional._torch.config import recompiles_allowed
from pytest_regional.fuzz.caches.model import (
    STATES,
    Answer,
    AnyProgram,
    CacheModel,
    CollectiveProgram,
    Key,
    process_group,
    program_of,
)
from pytest_regional.fuzz.modes import keeping_whole_results
from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.harness.pre_grad_passes import counting_pass
from pytest_regional.harness.raised import message_of

if TYPE_CHECKING:
    import torch

    from pytest_regional.harness.regional import Regional


@dataclass(frozen=True)
class Compile:
    """Something is compiled and run twice."""

    key: Key


@dataclass(frozen=True)
class NewProcess:
    """Something is compiled and run twice in another process, which shares the folder."""

    key: Key


@dataclass(frozen=True)
class Restart:
    """What this process holds is forgotten."""


@dataclass(frozen=True)
class Damage:
    """One of the cache's files, by its place in their order, is damaged in one of the ways of :data:`DAMAGES`."""

    number: int
    kind: str


@dataclass(frozen=True)
class Clear:
    """The cache is deleted, and a new process begins."""


Event: TypeAlias = "Compile | NewProcess | Restart | Damage | Clear"

#: Suffixes of code that Inductor and Triton generate and build.
_CODE = frozenset(
    (".py", ".cpp", ".h", ".so", ".o", ".cubin", ".ptx", ".json", ".ttir", ".ttgir", ".llir", ".source", ".lock")
)

#: What a full disk or a crash does to a file.
DAMAGES: Mapping[str, Callable[[bytes], bytes]] = {
    "a flipped bit": lambda data: _flipped(data, len(data) // 2),
    "its second half lost": lambda data: data[: len(data) // 2],
    "everything lost": lambda data: b"",
}


def _flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :] if data else data


class Executor:
    """Executes events on the backend under test, beginning with empty caches.

    Args:
        regional: the harness.
        mode: the mode that this process is in, and that new ones are to be in.

    Attributes:
        executed: the events so far; where one breaks the model it is the last.
    """

    def __init__(self, regional: Regional, mode: str) -> None:
        self.regional, self.model, self._mode = regional, CacheModel(), mode
        self.executed: list[Event] = []
        self._programs: dict[Key, AnyProgram] = {}
        self._passes: dict[tuple[str | None, ...], list[Any]] = {}
        regional.reset()

    def execute(self, event: Event) -> None:
        """Execute one event.

        Raises:
            OracleViolationError: a compile that breaks the model.
        """
        self.executed.append(event)
        match event:
            case Compile(key):
                self._compile(key)
            case NewProcess(key):
                self._compile_elsewhere(key)
            case Restart():
                self.regional.restart()
                self.model.restarted()
            case Damage(number, kind):
                self._damage(number, kind)
            case Clear():
                self.regional.reset()
                self.model.restarted()
                self.model.cleared()

    def _compile(self, key: Key) -> None:
        expected = self.model.answer(key)
        passes = self._passes.setdefault(key.passes, passes_of(key))
        with _process_group(key) as group:
            # Dynamo tells functions and passes apart by identity: the same ones are compiled already.
            program = self._programs.setdefault(key.held, program_of(key, group))
            _check(key, expected, moved_by(self.regional, program, key, passes))
        self.model.ran(key)

    def _compile_elsewhere(self, key: Key) -> None:
        there = self.regional.in_new_process(counters_of, key, self._mode)
        _check(key, self.model.answer_elsewhere(key), there.value)
        self.model.ran_elsewhere(key)

    def _damage(self, number: int, kind: str) -> None:
        files = sorted(path for path in self.regional.folder.rglob("*") if path.is_file() and path.parent.name != KEYS)
        if not self.regional.supports("pytorch_outer_cache"):
            # Inductor does not look at what its code files hold (docs/findings/emptied_code_file.py), and is under
            # every backend; what a backend keeps itself is what it answers for.
            files = [path for path in files if path.suffix not in _CODE]
        if files:
            path = files[number % len(files)]
            path.write_bytes(DAMAGES[kind](path.read_bytes()))
            self.model.damaged()


def run_sequence(regional: Regional, events: Iterable[Event], *, mode: str = "interpret") -> None:
    """Execute ``events``, beginning with empty caches.

    Args:
        regional: the harness.
        events: what happens, in order.
        mode: the mode that they are executed in.

    Raises:
        OracleViolationError: the first event that breaks the model.
    """
    # One function may be compiled at each event, with other passes or under other settings.
    with keeping_whole_results(regional, mode), recompiles_allowed(1000):
        executor = Executor(regional, mode)
        for event in events:
            executor.execute(event)


def _check(key: Key, expected: Answer, moved: Mapping[str, int]) -> None:
    problem = disagreement(key, expected, moved)
    if problem:
        counted = ", ".join(f"{moved[name]} {name}" for name in _CHECKED if moved[name])
        detail = f"compile of {key}: {problem} ({counted or 'no counter moved'})"
        raise OracleViolationError("caches", "restart", detail, origin=problem)


def _process_group(key: Key) -> contextlib.AbstractContextManager[tuple[str, int]]:
    return process_group(key.world, key.rank, key.mesh, key.group)


_CHECKED = (
    "cache_hits",
    "cache_misses",
    "cache_bypasses",
    "region_compiles",
    "pre_grad_calls",
    "region_pre_grad_calls",
    "traces",
)


def moved_by(regional: Regional, program: AnyProgram, key: Key, passes: Sequence[Any]) -> dict[str, int]:
    """Compile and run ``program`` as ``key`` says, compare with eager, and return the counters that moved.

    Raises:
        OracleViolationError: it fails, or the values are not eager's.
    """
    mark = regional.observer.log.mark()
    options: dict[str, Any] = {"dynamic": key.dynamic}
    if passes:
        options |= {"pre_grad_pass": passes if len(passes) > 1 else passes[0], "pre_grad_pass_timing": key.timing}
    with warnings.catch_warnings(), STATES[key.state]():
        # A damaged entry, and a pass without a uuid, are told by a warning; here they are expected.
        warnings.simplefilter("ignore")
        compiled = regional.compile(program, **options)
        for seed in (0, 1):
            _compare(key, program, compiled, seed)
    return dict(regional.observer.log.counters(mark))


def _compare(key: Key, held: AnyProgram, compiled: Any, seed: int) -> None:
    # The one that is held may be of another size.
    program = held if isinstance(held, CollectiveProgram) else program_of(key)
    ours, theirs = program.inputs("cpu", seed), program.inputs("cpu", seed)
    expected = _run(program, program, theirs)
    try:
        found = _run(program, compiled, ours)
    except OracleViolationError:
        raise
    except Exception as error:
        raise OracleViolationError(
            "caches", "run", f"eager runs {key}: {message_of(error)}", origin=type(error).__name__
        ) from error
    for one, other in zip(found, expected, strict=True):
        tolerance = 1e-5 if other.dtype == torch.float32 else 2e-2
        if one.dtype != other.dtype or one.shape != other.shape or not torch.allclose(one, other, tolerance, tolerance):
            raise OracleViolationError(
                "caches", "run", f"compile of {key}: the values are not eager's", origin="values"
            )


def _run(program: AnyProgram, function: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if not program.training:
        with torch.no_grad():
            return [function(*inputs)[0]]
    output = function(*inputs)[0]
    return [output.detach(), *torch.autograd.grad(output.float().sum(), list(inputs))]


def counters_of(regional: Regional, key: Key, mode: str) -> dict[str, int]:
    """Compile and run the program of ``key`` in this process; for a new one."""
    with keeping_whole_results(regional, mode), _process_group(key) as group:
        return moved_by(regional, program_of(key, group), key, passes_of(key))


def passes_of(key: Key) -> list[Any]:
    """Return the passes that ``key`` names, which count their runs."""
    return [counting_pass(uuid=uuid) for uuid in key.passes]


#: Hits and misses that may be, by what the model says.
_LOOKUPS: Mapping[Answer, Sequence[tuple[int, int]]] = {
    "memory": [(0, 0)],
    "hit": [(1, 0)],
    "miss": [(0, 1)],
    "either": [(1, 0), (0, 1)],
}


def disagreement(key: Key, expected: Answer, moved: Mapping[str, int]) -> str:
    """Return what the counters say that they should not; empty where they agree with the model."""
    lookups = moved["cache_hits"], moved["cache_misses"]
    if moved["cache_bypasses"]:
        # Some caches count what they cannot read among what they pass by.
        return "" if expected == "either" else "the cache was bypassed"
    allowed = _LOOKUPS[expected]
    if lookups not in allowed:
        return f"{_said(lookups)} where the model says {expected}"
    if not lookups[1] and moved["region_compiles"]:
        return "code was generated although the result was there"
    runs = key.runs(sum(lookups), lookups[1])
    if moved["pre_grad_calls"] != runs:
        return f"passes ran too {'often' if moved['pre_grad_calls'] > runs else 'rarely'} on {_said(lookups)}"
    if moved["region_pre_grad_calls"]:
        return "passes ran on regions"
    return ""


def _said(lookups: tuple[int, int]) -> str:
    return {(0, 0): "no lookup", (1, 0): "a hit", (0, 1): "a miss"}.get(lookups, "several lookups")


__all__ = [
    "DAMAGES",
    "Clear",
    "Compile",
    "Damage",
    "Event",
    "Executor",
    "NewProcess",
    "Restart",
    "counters_of",
    "disagreement",
    "run_sequence",
]
