"""A state machine for caches: any history of compiles, restarts, new processes, changes and damaged files.

It draws what :mod:`~pytest_regional.fuzz.histories` performs. Needs the ``hypothesis`` package.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.cache_model import FEW, MANY, Key, canonical
from pytest_regional.fuzz.cache_programs import PROGRAMS, STATES
from pytest_regional.fuzz.histories import DAMAGES, Clear, Compile, Damage, Event, NewProcess, Player, Restart
from pytest_regional.fuzz.oracles import LawBrokenError

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

#: Histories longer than this find nothing that shorter ones do not, and take as long as two of them.
LONGEST_HISTORY = 10


def fields_of_keys(*, passes: bool, training: bool = True, dynamic: bool = True) -> dict[str, tuple[Any, ...]]:
    """Return the values that each field of a key may have, the simplest first.

    Args:
        passes: whether there are pre-grad passes.
        training: whether there are programs that train.
        dynamic: whether sizes may be symbols.
    """
    return {
        "program": tuple(PROGRAMS),
        "region": ("a", "b", None),
        "fusion": (None, 8),
        "passes": _PASSES if passes else ((),),
        "timing": ("late", "default", "early") if passes else ("late",),
        "size": (FEW, FEW - 1, MANY, MANY + 1),
        "dynamic": (False, True) if dynamic else (False,),
        "training": (False, True) if training else (False,),
        "state": tuple(STATES),
    }


_PASSES: tuple[tuple[str | None, ...], ...] = (
    (),
    ("v1",),
    ("v2",),
    ("v1", "v2"),
    ("v2", "v1"),
    (None,),
    ("v1", None),
)


def keys(values: Mapping[str, Sequence[Any]]) -> st.SearchStrategy[Key]:
    """Return a strategy of keys with these values; the simplest is one annotated program and nothing else."""
    # Most of the time under no special setting: what holds for two settings says little.
    rare = {"state": ("",) * (2 * len(values["state"])) + tuple(values["state"])}
    drawn = {name: st.sampled_from(found) for name, found in {**values, **rare}.items()}
    return st.builds(Key, **drawn).map(canonical)


def _has_compiled(machine: _Machine) -> bool:
    return bool(machine.player.performed)


class _Machine(RuleBasedStateMachine):
    """The rules; :func:`run_cache_machine` gives each run its harness, and the list of what broke the model."""

    regional: Regional
    values: Mapping[str, Sequence[Any]]
    processes: bool
    broken: ClassVar[list[LawBrokenError]]

    @initialize()
    def begin(self) -> None:
        """Start with empty caches."""
        self.player = Player(self.regional)
        self.before = Key()

    @rule(data=st.data())
    def compile_and_run(self, data: st.DataObject) -> None:
        """Compile something and run it twice."""
        self._compile(data.draw(keys(self.values), label="compile"))

    @precondition(_has_compiled)
    @rule(restart=st.booleans())
    def compile_again(self, restart: bool) -> None:
        """Compile the same once more, in this process or the next."""
        if restart:
            self._perform(Restart())
        self._compile(self.before)

    @precondition(_has_compiled)
    @rule(data=st.data())
    def change_one_thing(self, data: st.DataObject) -> None:
        """Compile what was compiled last with one thing changed: nothing of the old must answer."""
        changes = [
            changed
            for name, values in self.values.items()
            for value in values
            if (changed := canonical(replace(self.before, **{name: value}))) != self.before
        ]
        self._compile(data.draw(st.sampled_from(changes), label="compile"))

    @precondition(lambda self: len(self.before.passes) > 1)
    @rule()
    def turn_passes_round(self) -> None:
        """Compile the same with its passes in the opposite order."""
        self._compile(replace(self.before, passes=self.before.passes[::-1]))

    @precondition(_has_compiled)
    @rule()
    def restart(self) -> None:
        """Forget what this process holds."""
        self._perform(Restart())

    @precondition(_has_compiled)
    @rule(number=st.integers(0, 63), damage=st.sampled_from(sorted(DAMAGES)))
    def damage_a_file(self, number: int, damage: str) -> None:
        """Damage a file of the cache."""
        self._perform(Damage(number, damage))

    @precondition(_has_compiled)
    @rule()
    def clear(self) -> None:
        """Delete the cache, and begin a new process."""
        self._perform(Clear())

    @precondition(lambda self: self.processes and self.player.model.stored)
    @rule(rarely=st.integers(0, 7))
    def compile_in_a_new_process(self, rarely: int) -> None:
        """Compile what was compiled last in another process. It takes seconds, so not always when it is drawn."""
        if rarely == 7:
            self._perform(NewProcess(self.before))

    def _compile(self, key: Key) -> None:
        self.before = key
        self._perform(Compile(key))

    def _perform(self, event: Event) -> None:
        try:
            self.player.perform(event)
        except LawBrokenError as error:
            self.broken.append(error)
            raise


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
            _run(machine, seed + clock.spent, _settings(batch, shrink))
        clock.spent += batch
    return clock.spent


def _run(machine: type[_Machine], seed: int, settings: hypothesis.settings) -> None:
    try:
        run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=settings)
    except hypothesis.errors.Flaky:
        # Not every history goes the same way twice: names of files, whose order damage goes by, may be drawn.
        if not machine.broken:
            raise
        raise machine.broken[0] from None


def _machine_for(regional: Regional, processes: bool) -> type[_Machine]:
    values = fields_of_keys(
        passes=bool(regional.spec.supports("pre_grad_timing")),
        training=bool(regional.spec.supports("backward")),
        dynamic=bool(regional.spec.supports("dynamic_shapes")),
    )
    attributes = {"regional": regional, "values": values, "processes": processes, "broken": []}
    return type("CacheMachine", (_Machine,), attributes)


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


__all__ = ["fields_of_keys", "keys", "run_cache_machine"]
