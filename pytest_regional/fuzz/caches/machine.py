"""A state machine for caches: any history of compiles, restarts, new processes, changes and damaged files.

It draws what :mod:`~pytest_regional.fuzz.caches.histories` plays. Needs the ``hypothesis`` package.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.caches.histories import (
    DAMAGES,
    Clear,
    Compile,
    Damage,
    Event,
    NewProcess,
    Restart,
    run_history,
)
from pytest_regional.fuzz.caches.model import ASKS_FOR_SIZE, FEW, MANY, PROGRAMS, STATES, Key, canonical

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

#: Histories that are drawn at a time; Hypothesis begins each time with the simplest.
_BATCH = 20

#: Histories longer than this find nothing that shorter ones do not, and take as long as two of them.
LONGEST_HISTORY = 10


def fields_of_keys(*, passes: bool, without: Collection[str] = ()) -> dict[str, tuple[Any, ...]]:
    """Return the values that each field of a key may have, the simplest first.

    Args:
        passes: whether there are pre-grad passes.
        without: capabilities that no history needs: ``backward``, ``dynamic_shapes``, ``region_ids``,
            ``region_configs``, ``pre_grad_pass_lists``.
    """
    lists = "pre_grad_pass_lists" not in without
    return {
        "program": tuple(PROGRAMS),
        "region": ("a", None) if "region_ids" in without else ("a", "b", None),
        "fusion": (None,) if "region_configs" in without else (None, 8),
        "passes": tuple(one for one in _PASSES if lists or len(one) < 2) if passes else ((),),
        "timing": ("late", "default", "early") if passes else ("late",),
        "size": (FEW, FEW - 1, MANY, MANY + 1),
        "dynamic": (False,) if "dynamic_shapes" in without else (False, True),
        "training": (False,) if "backward" in without else (False, True),
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
    return bool(machine.events)


#: Programs that differ in where the border of their region stands.
BORDERS = {"plain": "shorter region", "shorter region": "plain"}


class _Machine(RuleBasedStateMachine):
    """The rules: they say what happens next; what happened is played when the history is complete.

    Hypothesis wants to be told the same twice for the same draws. Histories are therefore drawn without looking at the
    backend, whose answers may depend on more than them.
    """

    values: ClassVar[Mapping[str, Sequence[Any]]]
    processes: ClassVar[bool]
    drawn: ClassVar[list[tuple[Event, ...]]]

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Start with empty caches; few things change in one history, so that they meet again."""
        self.events: list[Event] = []
        self.before: Key = data.draw(keys(self.values), label="what there is")
        free = [name for name, values in self.values.items() if len(values) > 1]
        varied = data.draw(st.lists(st.sampled_from(free), min_size=1, max_size=3, unique=True), label="what changes")
        self.varied = {name: self.values[name] for name in varied}

    @rule(data=st.data())
    def compile_and_run(self, data: st.DataObject) -> None:
        """Compile something and run it twice."""
        changes = {name: data.draw(st.sampled_from(values), label=name) for name, values in self.varied.items()}
        self._compile(canonical(replace(self.before, **changes)))

    @precondition(_has_compiled)
    @rule(restart=st.booleans())
    def compile_again(self, restart: bool) -> None:
        """Compile the same once more, in this process or the next."""
        if restart:
            self.events.append(Restart())
        self._compile(self.before)

    @precondition(_has_compiled)
    @rule(data=st.data())
    def change_one_thing(self, data: st.DataObject) -> None:
        """Compile what was compiled last with one thing changed: nothing of the old must answer."""
        name = data.draw(st.sampled_from(sorted(self.varied)), label="change")
        value = data.draw(st.sampled_from(self.varied[name]), label="to")
        self._compile(canonical(replace(self.before, **{name: value})))

    @precondition(lambda self: len(self.before.passes) > 1)
    @rule()
    def turn_passes_round(self) -> None:
        """Compile the same with its passes in the opposite order."""
        self._compile(replace(self.before, passes=self.before.passes[::-1]))

    @precondition(lambda self: self.before.region is not None and self.before.program in BORDERS)
    @rule()
    def move_the_border(self) -> None:
        """Compile the same with the border of its region elsewhere."""
        self._compile(replace(self.before, program=BORDERS[self.before.program]))

    @precondition(lambda self: self.before.dynamic)
    @rule(data=st.data())
    def change_the_size(self, data: st.DataObject) -> None:
        """Compile the same for another size, which the guards of the last one allow or exclude."""
        self._compile(replace(self.before, size=data.draw(st.sampled_from(self.values["size"]), label="size")))

    @precondition(_has_compiled)
    @rule()
    def restart(self) -> None:
        """Forget what this process holds."""
        self.events.append(Restart())

    @precondition(_has_compiled)
    @rule(number=st.integers(0, 63), damage=st.sampled_from(sorted(DAMAGES)))
    def damage_a_file(self, number: int, damage: str) -> None:
        """Damage a file of the cache."""
        self.events.append(Damage(number, damage))

    @precondition(_has_compiled)
    @rule()
    def clear(self) -> None:
        """Delete the cache, and begin a new process."""
        self.events.append(Clear())

    @precondition(lambda self: self.processes and _has_compiled(self))
    @rule(rarely=st.integers(0, 7))
    def compile_in_a_new_process(self, rarely: int) -> None:
        """Compile what was compiled last in another process. It takes seconds, so not always when it is drawn."""
        if rarely == 7:
            self.events.append(NewProcess(self.before))

    def _compile(self, key: Key) -> None:
        self.before = key
        self.events.append(Compile(key))

    def teardown(self) -> None:
        """Hand the history over."""
        self.drawn.append(tuple(self.events))


def histories(values: Mapping[str, Sequence[Any]], seed: int, *, processes: bool = True) -> Iterator[tuple[Event, ...]]:
    """Yield histories without end, the same for the same seed.

    Args:
        values: what the fields of keys may be: see :func:`fields_of_keys`.
        seed: what they are drawn from.
        processes: whether some compiles happen in new processes.
    """
    for number in itertools.count():
        drawn: list[tuple[Event, ...]] = []
        machine = type("CacheMachine", (_Machine,), {"values": values, "processes": processes, "drawn": drawn})
        run_state_machine_as_test(hypothesis.seed((seed * 1_000_003 + number) % 2**64)(machine), settings=_settings())
        yield from dict.fromkeys(history for history in drawn if history)


#: What a history may need, beside passes.
_NEEDED = ("backward", "dynamic_shapes", "region_ids", "region_configs", "pre_grad_pass_lists")


def histories_for(
    regional: Regional, seed: int, *, processes: bool = True, everything: bool = False
) -> Iterator[tuple[Event, ...]]:
    """Yield histories of what the backend under test has; with ``everything``, of what it disclaims as well."""
    without = [name for name in _NEEDED if not everything and not regional.supports(name)]
    passes = everything or bool(regional.supports("pre_grad_timing"))
    values = fields_of_keys(passes=passes, without=without)
    return histories(values, seed, processes=processes)


def run_cache_machine(
    regional: Regional,
    budget: Budget,
    seed: int,
    *,
    lane: str = "structure",
    processes: bool = True,
) -> int:
    """Play histories until the budget is spent; return how many.

    Args:
        regional: the harness.
        budget: how many histories, or how long.
        seed: what they are drawn from.
        lane: the lane that they are played in.
        processes: whether some compiles happen in new processes.

    Raises:
        LawBrokenError: the first history that breaks the model.
    """
    drawn = histories_for(regional, seed, processes=processes)
    clock = budget.start()
    while not clock.over:
        run_history(regional, next(drawn), lane=lane)
        clock.spent += 1
    return clock.spent


def _settings() -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=_BATCH,
        phases=(hypothesis.Phase.generate,),
        stateful_step_count=LONGEST_HISTORY,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


__all__ = ["fields_of_keys", "histories", "histories_for", "keys", "run_cache_machine"]
