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
from pytest_regional.fuzz.cache_model import ASKS_FOR_SIZE, FEW, MANY, Key, canonical
from pytest_regional.fuzz.cache_programs import PROGRAMS, STATES
from pytest_regional.fuzz.histories import DAMAGES, Clear, Compile, Damage, Event, NewProcess, Player, Restart
from pytest_regional.fuzz.oracles import LawBrokenError

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

#: Histories that are drawn at a time; Hypothesis begins each time with the simplest.
_BATCH = 20

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
    # Most of the time under no special setting: what holds for two settings says little. Symbols say the most of
    # a program that asks for its size.
    weighted = {
        "state": ("",) * (2 * len(values["state"])) + tuple(values["state"]),
        "program": (*values["program"], ASKS_FOR_SIZE, ASKS_FOR_SIZE),
        "dynamic": (*values["dynamic"], *values["dynamic"][1:]),
    }
    drawn = {name: st.sampled_from(found) for name, found in {**values, **weighted}.items()}
    return st.builds(Key, **drawn).map(canonical)


def _has_compiled(machine: _Machine) -> bool:
    return not machine.is_over and bool(machine.player.performed)


def _has_stored(machine: _Machine) -> bool:
    return not machine.is_over and bool(machine.player.model.stored)


class _Machine(RuleBasedStateMachine):
    """The rules; :func:`play_histories` gives each run its harness, and what to do where a history breaks the model."""

    regional: Regional
    values: Mapping[str, Sequence[Any]]
    processes: bool
    broke: Callable[[Sequence[Event], LawBrokenError], Any]
    ended: Callable[[], bool]
    stopped: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.is_over = type(self).stopped

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Start with empty caches; few things change in one history, so that they meet again."""
        if self.is_over:
            return
        self.player = Player(self.regional)
        self.before: Key = data.draw(keys(self.values), label="what there is")
        free = [name for name, values in self.values.items() if len(values) > 1]
        varied = data.draw(st.lists(st.sampled_from(free), min_size=1, max_size=3, unique=True), label="what changes")
        self.varied = {name: self.values[name] for name in varied}

    @rule(data=st.data())
    def compile_and_run(self, data: st.DataObject) -> None:
        """Compile something and run it twice."""
        if self.is_over:
            return
        changes = {name: data.draw(st.sampled_from(values), label=name) for name, values in self.varied.items()}
        self._compile(canonical(replace(self.before, **changes)))

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
        name = data.draw(st.sampled_from(sorted(self.varied)), label="change")
        value = data.draw(st.sampled_from(self.varied[name]), label="to")
        self._compile(canonical(replace(self.before, **{name: value})))

    @precondition(lambda self: not self.is_over and len(self.before.passes) > 1)
    @rule()
    def turn_passes_round(self) -> None:
        """Compile the same with its passes in the opposite order."""
        self._compile(replace(self.before, passes=self.before.passes[::-1]))

    @precondition(lambda self: self.before.dynamic)
    @rule(data=st.data())
    def change_the_size(self, data: st.DataObject) -> None:
        """Compile the same for another size, which the guards of the last one allow or exclude."""
        self._compile(replace(self.before, size=data.draw(st.sampled_from(self.values["size"]), label="size")))

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

    @precondition(lambda self: self.processes and _has_stored(self))
    @rule(rarely=st.integers(0, 7))
    def compile_in_a_new_process(self, rarely: int) -> None:
        """Compile what was compiled last in another process. It takes seconds, so not always when it is drawn."""
        if rarely == 7:
            self._perform(NewProcess(self.before))

    def _compile(self, key: Key) -> None:
        self.before = key
        self._perform(Compile(key))

    def _perform(self, event: Event) -> None:
        if self.is_over:
            return
        try:
            self.player.perform(event)
        except LawBrokenError as error:
            self.is_over = True
            self.broke(self.player.performed, error)

    def teardown(self) -> None:
        """Ask whether there is to be another history."""
        if not type(self).stopped:
            type(self).stopped = self.ended()


def play_histories(
    regional: Regional,
    seed: int,
    number: int,
    *,
    processes: bool = True,
    broke: Callable[[Sequence[Event], LawBrokenError], Any],
    over: Callable[[], bool] = lambda: False,
) -> None:
    """Play up to ``number`` histories against the backend under test.

    Args:
        regional: the harness.
        seed: what they are drawn from.
        number: how many.
        processes: whether some compiles happen in new processes.
        broke: called where a history breaks the model, with its events so far; the history ends there.
        over: asked after each history: whether it was the last.
    """
    values = fields_of_keys(
        passes=bool(regional.spec.supports("pre_grad_timing")),
        training=bool(regional.spec.supports("backward")),
        dynamic=bool(regional.spec.supports("dynamic_shapes")),
    )
    given = {"regional": regional, "values": values, "processes": processes}
    machine = type("CacheMachine", (_Machine,), {**given, "broke": staticmethod(broke), "ended": staticmethod(over)})
    run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=_settings(number))


def run_cache_machine(
    regional: Regional,
    budget: Budget,
    seed: int,
    *,
    processes: bool = True,
    scope: Callable[[], Any] | None = None,
) -> int:
    """Play histories until the budget is spent; return how many.

    Args:
        regional: the harness.
        budget: how many histories, or how long.
        seed: what they are drawn from.
        processes: whether some compiles happen in new processes.
        scope: returns a context that histories run in, such as one that switches a cache on.

    Raises:
        LawBrokenError: the first history that breaks the model.
    """
    clock = budget.start()
    broken: list[LawBrokenError] = []

    def over() -> bool:
        clock.spent += 1
        return clock.over or bool(broken)

    while not clock.over:
        with (scope or contextlib.nullcontext)():
            play_histories(
                regional,
                seed + clock.spent,
                min(budget.examples or _BATCH, _BATCH),
                processes=processes,
                broke=lambda history, error: broken.append(error),
                over=over,
            )
        if broken:
            raise broken[0]
    return clock.spent


def _settings(examples: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        phases=(hypothesis.Phase.generate,),
        stateful_step_count=LONGEST_HISTORY,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


__all__ = ["fields_of_keys", "keys", "play_histories", "run_cache_machine"]
