"""A state machine for caches: any history of compiles, restarts, new processes, changes and damaged files.

After each compile the counters must say what :class:`~pytest_regional.fuzz.cache_model.CacheModel` predicts, and the
values must be those of eager. Needs the ``hypothesis`` package.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from pytest_regional.fuzz.arguments import TensorInput
from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.cache_model import Answer, CacheModel, Key
from pytest_regional.fuzz.oracles import LawBrokenError
from pytest_regional.fuzz.program import Program, Region, Step

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

#: Histories longer than this find nothing that shorter ones do not, and take as long as two of them.
LONGEST_HISTORY = 10

_DAMAGES: Mapping[str, Callable[[bytes], bytes]] = {
    "a flipped bit": lambda data: _flipped(data, len(data) // 2),
    "its second half lost": lambda data: data[: len(data) // 2],
    "everything lost": lambda data: b"",
}


def _flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :] if data else data


def program_of(key: Key) -> Program:
    """Return the program that ``key`` names."""
    configs = () if key.fusion is None else (("max_fusion_size", key.fusion),)
    scope = () if key.region is None else (Region(key.region, configs),)
    steps = {
        0: (Step("mul", (0, 0), (), (1,), scope), Step("sin", (1,), (), (2,), scope)),
        1: (Step("mul", (0, 0), (), (1,), scope), Step("sin", (1,), (), (2,))),
        2: (Step("add", (0, 0), (), (1,), scope), Step("sin", (1,), (), (2,), scope)),
    }[key.program]
    argument = TensorInput((key.size, 3), requires_grad=key.training)
    return Program((argument,), steps, (2,), training=key.training, dynamic=False)


def canonical(key: Key) -> Key:
    """Return the key of the same graph: without annotation, settings go, and where the border stood."""
    return key if key.region is not None else replace(key, fusion=None, program=0 if key.program == 1 else key.program)


def keys(*, passes: bool, training: bool = True) -> st.SearchStrategy[Key]:
    """Return a strategy of keys; the simplest is one annotated program without settings or pass."""
    anything = st.builds(
        Key,
        program=st.sampled_from((0, 1, 2)),
        region=st.sampled_from(("a", "b", None)),
        fusion=st.sampled_from((None, 8)),
        uuid=st.sampled_from((None, "v1", "v2")) if passes else st.none(),
        size=st.sampled_from((4, 6)),
        training=st.booleans() if training else st.just(False),
    )
    return anything.map(canonical)


class _Machine(RuleBasedStateMachine):
    """The rules; :func:`run_cache_machine` gives each run its harness."""

    regional: Regional
    allowed: st.SearchStrategy[Key]
    processes: bool

    def __init__(self) -> None:
        super().__init__()
        self.model = CacheModel()
        self.programs: dict[Key, Program] = {}
        self.passes: dict[str, Any] = {}
        self.before: Key | None = None

    @initialize()
    def begin(self) -> None:
        """Start with empty caches."""
        self.regional.reset()

    @rule(data=st.data())
    def compile_and_run(self, data: st.DataObject) -> None:
        """Compile something and run it twice."""
        self._compile(data.draw(self.allowed, label="compile"))

    @rule()
    def compile_again(self) -> None:
        """Compile the same once more."""
        if self.before is not None:
            self._compile(self.before)

    @rule(data=st.data())
    def change_one_thing(self, data: st.DataObject) -> None:
        """Compile what was compiled last with one thing changed: nothing of the old must answer."""
        if self.before is None:
            return
        other = data.draw(self.allowed, label="compile something like")
        name = data.draw(st.sampled_from(("region", "fusion", "uuid", "size", "program", "training")), label="change")
        self._compile(canonical(replace(self.before, **{name: getattr(other, name)})))

    @rule()
    def restart(self) -> None:
        """Forget what this process holds."""
        self.regional.restart()
        self.model.restarted()

    @rule(number=st.integers(0, 63), damage=st.sampled_from(sorted(_DAMAGES)))
    def damage_a_file(self, number: int, damage: str) -> None:
        """Damage a file of the cache, as a full disk or a crash would."""
        files = sorted(path for path in self.regional.folder.rglob("*") if path.is_file())
        if files:
            path = files[number % len(files)]
            path.write_bytes(_DAMAGES[damage](path.read_bytes()))
            self.model.damaged()

    @rule()
    def clear(self) -> None:
        """Delete the cache, and begin a new process."""
        self.regional.reset()
        self.model.restarted()
        self.model.cleared()

    @rule(rarely=st.integers(0, 7))
    def compile_in_a_new_process(self, rarely: int) -> None:
        """Compile what was compiled last in another process. It takes seconds, so not always when it is drawn."""
        if self.processes and self.before is not None and rarely == 7:
            there = self.regional.in_new_process(counters_of, self.before)
            self._check(self.before, self.model.answer_elsewhere(self.before), there.value)
            self.model.ran_elsewhere(self.before)

    def _compile(self, key: Key) -> None:
        expected = self.model.answer(key)
        self.before = key
        program = self.programs.setdefault(key, program_of(key))
        custom = self.passes.setdefault(key.uuid, _pass(key.uuid)) if key.uuid is not None else None
        moved = moved_by(self.regional, program, custom)
        self._check(key, expected, moved)
        self.model.ran(key)

    def _check(self, key: Key, expected: Answer, moved: Mapping[str, int]) -> None:
        problem = disagreement(key, expected, moved)
        if problem:
            raise LawBrokenError("caches", "restart", f"compile of {key}: {problem}", origin=problem)


def _pass(uuid: str) -> Any:
    from pytest_regional.harness.passes import counting_pass

    return counting_pass(uuid=uuid)


def moved_by(regional: Regional, program: Program, custom: Any) -> dict[str, int]:
    """Compile and run ``program``, compare with eager, and return the counters that moved.

    Raises:
        LawBrokenError: the values are not eager's.
    """
    mark = regional.observer.log.mark()
    with warnings.catch_warnings():
        # A damaged entry is told by a warning; here it is expected.
        warnings.simplefilter("ignore")
        timing = None if custom is None else "late"
        compiled = regional.compile(program, dynamic=False, pre_grad_pass=custom, pre_grad_pass_timing=timing)
        for seed in (0, 1):
            _compare(program, compiled, seed)
    return dict(regional.observer.log.counters(mark))


def _compare(program: Program, compiled: Any, seed: int) -> None:
    import torch

    ours, theirs = program.inputs("cpu", seed), program.inputs("cpu", seed)
    found, expected = compiled(*ours)[0], program(*theirs)[0]
    if program.training:
        found.sum().backward()
        expected.sum().backward()
    pairs = [(found, expected), *((one.grad, other.grad) for one, other in zip(ours, theirs, strict=True))]
    for one, other in pairs:
        same = one is None if other is None else one is not None and torch.allclose(one, other, 1e-5, 1e-5)
        if not same:
            raise LawBrokenError("caches", "run", "the values are not eager's", origin="values")


def counters_of(regional: Regional, key: Key) -> dict[str, int]:
    """Compile and run the program of ``key`` in this process; for a new one."""
    return moved_by(regional, program_of(key), None if key.uuid is None else _pass(key.uuid))


def disagreement(key: Key, expected: Answer, moved: Mapping[str, int]) -> str:
    """Return what the counters say that they should not; empty where they agree with the model."""
    lookups = moved["cache_hits"], moved["cache_misses"]
    allowed = {"memory": [(0, 0)], "hit": [(1, 0)], "miss": [(0, 1)], "either": [(1, 0), (0, 1)]}[expected]
    if moved["cache_bypasses"]:
        return "the cache was bypassed"
    if lookups not in allowed:
        return f"{_said(lookups)} where the model says {expected}"
    if not lookups[1] and moved["region_compiles"]:
        return "code was generated although the result was there"
    runs = lookups[1] if key.uuid is not None else 0
    if moved["pre_grad_calls"] != runs:
        return f"the pass ran {moved['pre_grad_calls']} times on {_said(lookups)}, {runs} are right"
    return ""


def _said(lookups: tuple[int, int]) -> str:
    return {(0, 0): "no lookup", (1, 0): "a hit", (0, 1): "a miss"}.get(
        lookups, f"{lookups[0]} hits, {lookups[1]} misses"
    )


def run_cache_machine(
    regional: Regional,
    budget: Budget,
    seed: int,
    *,
    processes: bool = True,
    shrink: bool = True,
    scope: Callable[[], Any] | None = None,
) -> int:
    """Run histories against the backend under test until the budget is spent; return how many.

    Args:
        regional: the harness.
        budget: how many histories, or how long.
        seed: what they are drawn from.
        processes: whether some compiles happen in new processes.
        shrink: whether a history that breaks the model is made shorter; that takes up to five minutes.
        scope: returns a context that histories run in, such as one that switches a cache on.

    Raises:
        LawBrokenError: a history that breaks the model; its steps are printed.
    """
    machine = _machine_for(regional, processes)
    clock = budget.start()
    while not clock.over:
        batch = min(budget.examples - clock.spent, 20) if budget.examples is not None else 5
        with (scope or contextlib.nullcontext)():
            run_state_machine_as_test(_seeded(machine, seed + clock.spent), settings=_settings(batch, shrink))
        clock.spent += batch
    return clock.spent


def _machine_for(regional: Regional, processes: bool) -> type[_Machine]:
    passes = bool(regional.spec.supports("pre_grad_timing"))
    attributes = {"regional": regional, "allowed": keys(passes=passes), "processes": processes}
    return type("CacheMachine", (_Machine,), attributes)


def _seeded(machine: type[_Machine], seed: int) -> type[_Machine]:
    return hypothesis.seed(seed)(machine)


def _settings(examples: int, shrink: bool) -> hypothesis.settings:
    phases = (hypothesis.Phase.generate, *((hypothesis.Phase.shrink,) if shrink else ()))
    return hypothesis.settings(
        max_examples=examples,
        phases=phases,
        stateful_step_count=LONGEST_HISTORY,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


__all__ = ["counters_of", "disagreement", "keys", "program_of", "run_cache_machine"]
