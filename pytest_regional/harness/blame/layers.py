"""The search: layer after layer, each by experiment.

What Dynamo captured runs eagerly; then what AOTAutograd made of it does; then passes of the user's are left out, and
what the backend can do otherwise is tried; then regions are left eager; then steps of Inductor's are left out, all of a
a kind and then few of them, and settings that take something out of code generation. The kind nearest to the failure
comes first: a rewrite is part of a pass, and without a lowering there is nothing to fuse. The others are tried as well:
what fixes the failure though the step that was found still does its work is named next to it, and nothing is confirmed.
Where regions are wrong without Inductor, or the check is about the compile, another backend takes the place of the one
under test.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pytest_regional._base.errors import OutOfTimeError
from pytest_regional._torch.vetoes import KINDS, Application, Setting, vetoing
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.harness.blame.culprit import (
    SAID,
    Change,
    Confidence,
    Culprit,
    Experiments,
    Layer,
    few_that_fix,
)
from pytest_regional.harness.blame.facts import CompileFacts, Difference, first_difference
from pytest_regional.harness.cache_keys import different
from pytest_regional.harness.counters import CounterExpectationError

T = TypeVar("T")

_UNCOMPILED = Change("nothing compiled", compiles=False, generates_code=False)

_DYNAMOS, _GRAPHS = "Dynamo's graph run eagerly", "AOTAutograd's graphs run eagerly"

#: How often a failure has to come again before a change is said to fix it; once less where it came often before.
_COMES, _OFTEN = 3, 5

#: How often it then has to be gone with that change.
_GONE = 4

#: Of more steps of one name none is singled out.
_MANY = 12

#: So many steps of a kind are named, each of which fixes a failure alone.
_ALTERNATIVES = 3

#: How many experiments may search for a step without which the program does not compile.
_TO_NEEDED = 8

#: Kinds of steps, in the order in which they are left out, and the layer that each is of; settings come in between.
_GRAPH_CHANGES: Mapping[str, Layer] = {
    "rewrite": "rewrite",
    "pre_grad_pass": "pass",
    "joint_graph_pass": "pass",
    "post_grad_pass": "pass",
}
_CODE: Mapping[str, Layer] = {"fusion": "fusion", "decomposition": "decomposition", "lowering": "lowering"}


#: What several kinds are called together.
_SEVERAL = {tuple(_GRAPH_CHANGES): "pass or rewrite", KINDS: "step that can be left out"}


@dataclass(frozen=True)
class Suspects:
    """What may be to blame."""

    applied: Sequence[Application] = ()  # the steps of the compile that failed
    #: Dynamo backends that only capture: ``"dynamo"``, ``"aot_autograd"``, and ``"other_partitioner"`` for AOTAutograd
    #: with the partitioner that the backend does not use; those that are not there are not tried
    captures: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    passes: Sequence[str] = ()  # names of the user's graph passes, in order
    #: Dynamo backends that do one thing otherwise than the one under test, by what is then so
    alternatives: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    #: the one under test with each of its partitioners, by what is then so
    partitioners: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    regions: Sequence[str] = ()  # names of the program's regions; empty where the backend has none
    settings: Sequence[Setting] = ()  # what takes something out of scheduling or code generation
    not_tried: tuple[str, ...] = ()
    #: makes a context in which graphs of regions are interpreted, and Inductor compiles none
    interpreting: Callable[[], contextlib.AbstractContextManager[Any]] | None = None
    peers: Mapping[str, BackendSpec] = field(default_factory=dict)  # other backends that compile regions, by name
    #: what was seen of the compiles of each experiment, by its sentence
    seen: Mapping[str, CompileFacts] = field(default_factory=dict)


def search(experiments: Experiments, suspects: Suspects) -> Culprit:
    """Return where the failure comes from; where the experiments run out, what is known by then.

    Of several values that are wrong the first is searched for; then, once, the first that remains wrong.
    """
    first = _found(experiments, suspects)
    remaining = experiments.remaining()
    others: tuple[Culprit, ...] = ()
    if first.confidence == "confirmed" and remaining:
        experiments.aim_at(remaining)
        second = _found(experiments, suspects)
        others = (second,) if second.confidence != "unknown" else ()
    return replace(first, others=others, experiments=tuple(experiments.made), not_tried=suspects.not_tried)


def _found(experiments: Experiments, suspects: Suspects) -> Culprit:
    one = _Search(experiments, suspects)
    try:
        return one.run()
    except OutOfTimeError:
        confidence: Confidence = "unknown" if one.known.layer == "unknown" else "necessary"
        return replace(one.known, confidence=confidence, ended_early=True)


@dataclass(eq=False)
class Veto:
    """Makes contexts in which steps are left out (:func:`vetoing`), and keeps what the last one saw."""

    steps: tuple[Application, ...] = ()
    kinds: tuple[str, ...] = ()
    families: tuple[tuple[str, str], ...] = ()
    applied: list[Application] = field(default_factory=list)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Leave them out."""
        with vetoing(self.steps, self.kinds, self.families) as seen:
            self.applied = seen.applications
            yield


class _Search:
    def __init__(self, experiments: Experiments, suspects: Suspects) -> None:
        self._experiments, self._suspects = experiments, suspects
        self._regions: tuple[str, ...] = ()
        self._eager: frozenset[str] = frozenset()
        #: Whether another error of a compiler's counts as the same failure; not for wrong values, which it hides.
        self._crashes_count = experiments.raises
        self._alternatives_left = True
        #: The steps of the last experiment in which all of a kind were left out.
        self._seen: Sequence[Application] = ()
        self.known = Culprit("unknown")

    def run(self) -> Culprit:
        if not self._experiments.fails(Change()):
            return Culprit("flaky" if self._experiments.fails(Change()) else "nothing")
        uncompiled = self._experiments.outcome_of(_UNCOMPILED)
        if uncompiled != "fixed":
            if self._experiments.outcome_of(_UNCOMPILED) != uncompiled:
                return Culprit("flaky")
            # What checks facts of the compile fails without one, and says nothing of layers that compile nothing.
            of_compile = self._experiments.raises or uncompiled == "another failure"
            self.known = Culprit("eager", confidence="unknown" if of_compile else "confirmed")
            captured = None
        else:
            captured = self._captured()
        if captured or self.known.confidence == "confirmed":
            return captured or self.known
        return next(filter(None, (look(self) for look in _LOOKS)), self.known)

    def _in_inductor(self) -> Culprit | None:
        """Return what fixes the failure of the first row that has something, and what the rows behind it have."""
        rows: Mapping[str, Callable[[], Culprit | None]] = {
            "pass": self._graph_changes,
            "setting": self._settings,
            **{kind: functools.partial(self._kinds, {kind: layer}) for kind, layer in _CODE.items()},
        }
        for place, look in enumerate(rows.values()):
            found = look()
            if found:
                return self._with_others(found, [*rows][place + 1 :])
        return None

    def _with_others(self, found: Culprit, rows: Sequence[str]) -> Culprit:
        """Return what was found, with what else fixes the failure though the found step still does its work."""
        if found.confidence == "unknown":
            return found
        self.known = replace(found, confidence="necessary")
        if found.setting:
            # The code of a kernel goes where its lowering or, as it is one kernel, its fusion goes.
            rows = [row for row in rows if row == "fusion" and found.layer in ("memory", "scheduling", "layout")]
        also = {row: others for row in rows if (others := self._fixing_as_well(found, row)) is not None}
        others = tuple(other for row in also.values() for other in row)
        if not others:
            return found
        if found.also and len(also) > 1 and all(also.values()):  # whatever is changed fixes it
            return Culprit("unknown", regions=self._regions)
        return replace(self.known, also=(*found.also, *others))

    def _fixing_as_well(self, found: Culprit, row: str) -> tuple[Culprit, ...] | None:
        """Return what of a row fixes the failure alone though the found steps still act; ``None`` for an empty row."""
        if row == "setting":
            return self._settings_that_fix(self._suspects.settings) if self._suspects.settings else None
        if not any(step.kind == row and not step.required for step in self._suspects.applied):
            return None
        steps = self._left_out((row,))
        acted = {step for step in self._seen if step.acted}
        if not steps or not all(step in acted or not step.acted for step in found.steps):
            return ()
        sets = self._narrowed(_families(steps), self._without_families)
        return tuple(Culprit(_CODE[row], _steps_of(families, steps)) for families in sets)

    def _captured(self) -> Culprit | None:
        """Return a culprit where no code of the backend has to run for the failure."""
        dynamo = self._captured_by("dynamo", _DYNAMOS)
        if dynamo and self._fails_captured(dynamo):
            return self._again(Culprit("dynamo"), dynamo)
        graphs = self._captured_by("aot_autograd", _GRAPHS)
        if graphs is None or not self._fails_captured(graphs):
            return None
        other = self._captured_by("other_partitioner", f"{_GRAPHS}, of the other partitioner")
        if other is not None and self._experiments.fixes(other):
            return self._again(Culprit("partitioner"), graphs, other)
        return self._again(Culprit("aot_autograd"), graphs)

    def _fails_captured(self, change: Change) -> bool:
        """Say whether it fails alike, or a compiler raises another error: so early that is the same defect."""
        outcome = self._experiments.outcome_of(change)
        crashed = self._crashes_count and self._experiments.made[-1].crashed
        return outcome == "the same" or (outcome == "another failure" and crashed)

    def _crashes_captured(self) -> Culprit | None:
        """Return a culprit where values are wrong, no step fixes them, and AOTAutograd's graphs raise where they run.

        Eager's autograd notices what generated code computes wrongly, such as a saved value that was written to.
        Where Dynamo's graph is not right either, the program may not run so at all.
        """
        dynamo = self._captured_by("dynamo", _DYNAMOS)
        asked = not (self._regions or self.known.layer == "eager" or self._crashes_count)
        if not asked or dynamo is None or self._experiments.known_outcome(dynamo) != "fixed":
            return None
        self._crashes_count = True
        return self._captured()

    def _captured_by(self, name: str, sentence: str) -> Change | None:
        backend = self._suspects.captures.get(name)
        return Change(sentence, backend=backend, generates_code=False) if backend else None

    def _again(self, found: Culprit, wrong: Change, *right: Change) -> Culprit:
        """Return what was found, if the same changes are wrong and right again, and the uncompiled program is right.

        These runs cost little, and a program that fails by chance alone fails in eager as well.
        """
        for _ in range(_GONE - 1):
            if not (self._experiments.fails(Change()) and self._fails_captured(wrong)):
                return Culprit("flaky")
            if not all(map(self._experiments.fixes, (_UNCOMPILED, *right))):
                return Culprit("flaky")
        return replace(found, confidence="confirmed")

    def _passes(self) -> Culprit | None:
        names = self._suspects.passes
        steps = [Application("graph_pass", name, list(names[:place]).count(name)) for place, name in enumerate(names)]
        if not steps or not self._experiments.fixes(_without_passes(steps, steps)):
            return None
        self.known = Culprit("pass", confidence="necessary")
        return self._culprit(steps, lambda some: _without_passes(some, steps))

    def _alternatives(self, *, early: bool = False) -> Culprit | None:
        """Return what the backend can do otherwise, where that fixes the failure.

        Each costs a compile, and Inductor is mostly to blame: so only where a cache answered, the check is about the
        compile, or Inductor is not to blame, which is known later.
        """
        asked = not early or self.known.layer == "eager" or self._cache_answered
        if not asked or not self._alternatives_left:
            return None
        self._alternatives_left = False
        found = self._otherwise("backend", self._suspects.alternatives)
        return found and self._with_ingredients(found)

    @property
    def _cache_answered(self) -> bool:
        facts = self._suspects.seen.get("")
        return facts is not None and facts.cache_answered

    def _with_ingredients(self, found: Culprit) -> Culprit:
        """Add, where a cache answered, in what the calls differ of which one was given the answer to another."""
        facts = self._suspects.seen.get("")
        if facts is None or not (found.layer == "cache" or self._cache_answered):
            return found
        said = (found.difference, different(facts.ingredients))
        return replace(found, difference="; ".join(filter(None, said)))

    def _other_partitioner(self) -> Culprit | None:
        return self._otherwise("partitioner", self._suspects.partitioners)

    def _otherwise(self, layer: Layer, backends: Mapping[str, Callable[..., Any]]) -> Culprit | None:
        for name, backend in backends.items():
            change = Change(name, backend=backend)
            if self._experiments.fixes(change):
                return self._confirmed(Culprit(layer, setting=name), change)
        return None

    def _stage(self) -> Culprit | None:
        """Return the stage of the backend, where the check is about the compile and another backend passes it.

        That one uses Inductor as well, so it is no step of Inductor's.
        """
        if self.known.layer != "eager":
            return None
        found = self._compared(self.known)
        return found if found is not self.known else None

    def _region(self) -> Culprit | None:
        """Note which regions the rest of the search is about; return a culprit where it is none of them."""
        names = self._suspects.regions
        if not names:
            return None
        none = _left_eager(names, names)
        outcome = self._experiments.outcome_of(none)
        if outcome == "the same" and self.known.layer != "eager":
            other = self._alternatives() or self._other_partitioner()
            return other or self._compared(self._again(Culprit("backend"), none), none)
        if outcome != "fixed":
            return None
        outcomes = {name: self._experiments.outcome_of(_left_eager([name], names)) for name in names if len(names) > 1}
        alone = [name for name in names if outcomes.get(name, outcome) == "fixed"]
        if not alone:
            others = {name: [one for one in names if one != name] for name in names}
            alone = [name for name in names if not self._experiments.fixes(_left_eager(others[name], names))]
            self._regions = tuple(alone or names)
            self.known = Culprit("region", regions=self._regions, confidence="necessary")
            return None
        self._regions = tuple(alone)
        self.known = Culprit("region", regions=self._regions, confidence="confirmed")
        rest = [name for name in names if name not in alone]
        if len(alone) == 1 and rest:
            known = outcomes[rest[0]] if len(rest) == 1 else self._experiments.outcome_of(_left_eager(rest, names))
            self._eager = frozenset(rest) if known == "the same" else frozenset()
        return None

    def _without_inductor(self) -> Culprit | None:
        """Return a culprit where the failure remains though Inductor compiles no region."""
        interpreting = self._suspects.interpreting
        if interpreting is None or not self._suspects.regions:
            return None
        said = "graphs of regions interpreted, not compiled by Inductor"
        if not self._experiments.fails(self._on_regions(Change(said, interpreting, generates_code=False))):
            return None
        return self._alternatives() or self._whole_regions(without_inductor=True)

    def _whole_regions(self, *, without_inductor: bool = False) -> Culprit:
        """Return what is left to say where no step fixes the failure: that it is these regions."""
        if not self._regions:
            captured = self._captured_by("aot_autograd", _GRAPHS)
            if self.known.layer == "eager":
                return self._compared(self.known)
            if captured is None or self._experiments.known_outcome(captured) != "fixed":
                return self._compared(Culprit("unknown"))
            return self._compared(self._confirmed(Culprit("backend"), captured, alone=False))
        found = Culprit("region", regions=self._regions, without_inductor=without_inductor)
        left_eager = _left_eager(self._regions, self._suspects.regions)
        alone = self.known.confidence == "confirmed"
        return self._compared(self._confirmed(found, left_eager, alone=alone))

    def _compared(self, found: Culprit, wrong: Change | None = None) -> Culprit:
        """Return the stage of the backend at which one that is right does something else, where there is one.

        Both are looked at under the change ``wrong``, with which the failure remains: with every region left eager,
        what they do with regions says nothing.
        """
        wrong = wrong or Change()
        if found.layer not in ("region", "backend", "eager", "unknown"):
            return found
        for name, spec in self._suspects.peers.items():
            said = ", ".join(filter(None, [f"backend {name!r} in its place", wrong.sentence]))
            instead = replace(wrong, sentence=said, instead=spec)
            if (self._experiments.known_outcome(instead) or self._experiments.outcome_of(instead)) != "fixed":
                continue
            seen = self._suspects.seen
            of_compile = self._experiments.raises or found.layer == "eager"
            of_counters = any(CounterExpectationError.__name__ in part for part in self._experiments.usual)
            difference = first_difference(
                seen[wrong.sentence], seen[instead.sentence], of_compile=of_compile, of_counters=of_counters
            )
            of_region = found.layer == "region"
            if difference is None and (found.layer == "backend" or (of_region and not seen[""].handed_over)):
                return found
            layer, sentence = difference or Difference("call" if of_region else "backend", "both compile the same")
            setting = instead.sentence
            known = replace(found, layer=layer, setting=setting, difference=sentence)
            confirmed = self._confirmed(known, instead, alone=False)
            return self._with_ingredients(confirmed) if layer == "cache" else confirmed
        return found

    def _graph_changes(self) -> Culprit | None:
        """Return passes or rewrites that are to blame; all are left out first, which mostly rules out all."""
        kinds = tuple(_GRAPH_CHANGES)
        if not self._did_something(kinds) or not self._left_out(kinds):
            return None
        # It may be enough to leave out those of one kind that did something.
        for kind, layer in _GRAPH_CHANGES.items():
            acted = _families(
                one for one in self._suspects.applied if one.kind == kind and one.acted and not one.required
            )
            veto = Veto(families=tuple(acted))
            if not acted or not self._experiments.fixes(self._without_families(acted, veto)):
                continue
            # Another pass may fix it as well, of whatever stage. That one fixes it which makes a rewrite, says nothing.
            like = [one for one, other in _GRAPH_CHANGES.items() if other == layer]
            steps = [step for step in veto.applied if step.kind in like and not step.required]
            return self._of_steps(steps, layer, acted)
        return self._kinds(_GRAPH_CHANGES) or self._of_kinds(kinds, "pass")

    def _kinds(self, order: Mapping[str, Layer]) -> Culprit | None:
        found = (self._of_kinds((kind,), layer) for kind, layer in order.items() if self._did_something((kind,)))
        return next((one for one in found if one), None)

    def _did_something(self, kinds: Sequence[str]) -> bool:
        return any(step.kind in kinds and step.acted for step in self._suspects.applied)

    def _all_kinds(self) -> Culprit | None:
        """Return steps of several kinds that are to blame together."""
        found = self._of_kinds(KINDS, "unknown")
        if not found or not found.steps:
            return None
        layers = {**_GRAPH_CHANGES, **_CODE}
        return replace(found, layer=layers[min((step.kind for step in found.steps), key=KINDS.index)])

    def _of_kinds(self, kinds: Sequence[str], layer: Layer) -> Culprit | None:
        """Return few steps of some kinds that are to blame, if none of these steps fixes the failure.

        First families of steps are left out, then steps of those. They are the steps that were left out when all were:
        one that is left out may give another one its turn.
        """
        steps = self._left_out(kinds)
        return self._of_steps(steps, layer) if steps else None

    def _required_decompositions(self) -> Culprit | None:
        """Return those to blame of the decompositions without which an operator has no lowering, but its own kernel.

        They come last: a wrong lowering in what one is made of is the better answer.
        """
        steps = [step for step in self._suspects.applied if step.kind == "decomposition" and step.required]
        fixed = bool(steps) and self._experiments.fixes(self._without_families(_families(steps)))
        return self._of_steps(steps, "decomposition") if fixed else None

    def _of_steps(self, steps: Sequence[Application], layer: Layer, enough: Sequence[tuple[str, str]] = ()) -> Culprit:
        """Return few of the steps that are to blame; ``enough`` are families that are known to fix the failure."""
        self.known = Culprit(layer, tuple(steps), self._regions, confidence="necessary")
        families = _families(steps)
        if not enough and not 1 < len(families) < len(steps):
            return self._culprit(steps, self._without)
        first, *others = self._narrowed(families, self._without_families, enough)
        # A pass that runs in several stages is one family, also where only one of the stages was left out so far.
        known = dict.fromkeys([*steps, *self._suspects.applied])
        chosen = _steps_of(first, known)
        change = self._without_families(first)
        if len(chosen) <= _MANY:
            remains = self._experiments.signature_under(change)

            def fixes(some: Sequence[Application]) -> bool:
                """Say whether nothing more remains without some than without all: backwards repeat operators."""
                fixed = self._experiments.fixes(self._without(some))
                return fixed and self._experiments.made[-1].signature <= remains

            chosen = few_that_fix(chosen, fixes, self._experiments.left)
            change = self._without(chosen)
        also = tuple(Culprit(layer, _steps_of(families, known)) for families in others)
        self.known = replace(self.known, steps=chosen, also=also)
        return self._confirmed(self.known, change, alone=len(first) == 1 and not also)

    def _left_out(self, kinds: Sequence[str]) -> list[Application]:
        """Return the steps of some kinds if the failure is gone without all of them, else none.

        Where the program then fails otherwise, what it needs is searched for, and stays.
        """
        if not any(step.kind in kinds and not step.required for step in self._suspects.applied):
            return []
        veto = Veto(kinds=tuple(kinds))
        outcome = self._experiments.outcome_of(self._without_kinds(kinds, veto))
        self._seen = veto.applied
        steps = [step for step in veto.applied if step.kind in kinds and not step.required]
        if outcome != "another failure":
            return steps if outcome == "fixed" else []

        def fails_otherwise(some: Sequence[tuple[str, str]]) -> bool:
            return self._experiments.outcome_of(self._without_families(some)) == "another failure"

        needed = few_that_fix(_families(steps), fails_otherwise, _TO_NEEDED)
        steps = [step for step in steps if step.family not in needed]
        veto = Veto(families=tuple(_families(steps)))
        fixed = bool(steps) and self._experiments.fixes(self._without_families(veto.families, veto))
        self._seen = veto.applied
        return steps if fixed else []

    def _settings(self) -> Culprit | None:
        found = self._settings_that_fix(self._suspects.settings)
        if not found:
            return None
        self.known = replace(found[0], regions=self._regions, confidence="necessary", also=found[1:])
        (change,) = (self._set(one) for one in self._suspects.settings if one.sentence == self.known.setting)
        if self.known.layer == "cache":
            return self._with_ingredients(self._confirmed(self.known, change))
        self.known = replace(self.known, lowerings=self._lowerings())
        return self._confirmed(self.known, change, alone=len(found) == 1)

    def _settings_that_fix(self, settings: Sequence[Setting]) -> tuple[Culprit, ...]:
        """Return the first of the settings that fixes the failure, and those of the others that do."""
        # A cache that gave no answer comes last: it can still fail where it keeps one.
        some = sorted(settings, key=lambda one: one.layer == "cache" and not self._cache_answered)
        said = "with all settings below" if len(some) == len(self._suspects.settings) else "with the settings behind it"
        together = self._on_regions(Change(said, within=functools.partial(_all_of, some)))
        if not some or not self._experiments.fixes(together):
            return ()
        for place, setting in enumerate(some):
            if self._experiments.fixes(self._set(setting)):
                rest = () if setting.layer == "cache" else self._settings_that_fix(some[place + 1 :])
                return (Culprit(setting.layer, setting=setting.sentence), *rest)
        return ()

    def _set(self, setting: Setting) -> Change:
        return self._on_regions(Change(setting.sentence, within=setting.context))

    def _lowerings(self) -> tuple[str, ...]:
        """Return the operators without whose lowering the failure is gone, where they are few."""
        families = _families(step for step in self._suspects.applied if step.kind == "lowering")
        try:
            if not families or not self._experiments.fixes(self._without_kinds(("lowering",))):
                return ()
            found = self._few(families, self._without_families, most=8)
        except OutOfTimeError:
            return ()
        return tuple(family for _, family in found) if len(found) <= 2 else ()

    def _few(
        self, steps: Sequence[T], without: Callable[[Sequence[T]], Change], most: int | None = None
    ) -> tuple[T, ...]:
        left = self._experiments.left if most is None else most
        return few_that_fix(steps, lambda some: self._experiments.fixes(without(some)), left)

    def _culprit(self, steps: Sequence[Application], without: Callable[[Sequence[Application]], Change]) -> Culprit:
        """Return few of the steps, which fix the failure together, and how sure it is that it is these."""
        self.known = replace(self.known, steps=tuple(steps))
        first, *others = self._narrowed(steps, without)
        also = tuple(Culprit(self.known.layer, some) for some in others)
        self.known = replace(self.known, steps=first, also=also)
        return self._confirmed(self.known, without(first), alone=len(first) == 1 and not also)

    def _narrowed(
        self, items: Sequence[T], without: Callable[[Sequence[T]], Change], enough: Sequence[T] = ()
    ) -> list[tuple[T, ...]]:
        """Return few of the items, which fix the failure together, and behind them others that do without these.

        Where it is known that it is enough to leave out some, it is few of these.
        """
        sets = [self._few(enough or items, without)]
        while len(sets[0]) == 1 and len(sets) < _ALTERNATIVES:
            others = [one for one in items if not any(one in found for found in sets)]
            if not others or not self._experiments.fixes(without(others)):
                break
            sets.append(self._few(others, without))
        return sets

    def _confirmed(self, found: Culprit, change: Change, *, alone: bool = True) -> Culprit:
        """Return what was found, if it is found again, and if not every change fixes the failure.

        The failure comes again two or three times without the change, and is gone four times with it. So a failure
        that comes by chance hardly ever gets an answer: ``test_a_failure_that_comes_by_chance`` counts.
        """
        failed = sum(one.outcome == "the same" for one in self._experiments.made)
        unchanged = [Change()] * (_COMES - (failed >= _OFTEN))
        if not all(map(self._experiments.fails, unchanged)) or not all(map(self._experiments.fixes, [change] * _GONE)):
            return Culprit("flaky")
        if not any(one.outcome == "the same" and one.sentence for one in self._experiments.made):
            nothing = Veto((Application("rewrite", "of another program"),))
            if not self._experiments.fails(self._on_regions(Change("without a step that it has not", nothing))):
                return Culprit("unknown", regions=self._regions)
        return replace(found, confidence="confirmed" if alone else "necessary")

    def _on_regions(self, change: Change) -> Change:
        return replace(change, eager_regions=self._eager)

    def _without_kinds(self, kinds: Sequence[str], veto: Veto | None = None) -> Change:
        names = SAID[kinds[0]].removesuffix(" of") if len(kinds) == 1 else _SEVERAL[tuple(kinds)]
        return self._on_regions(Change(f"without any {names}", veto or Veto(kinds=tuple(kinds))))

    def _without_families(self, families: Sequence[tuple[str, str]], veto: Veto | None = None) -> Change:
        names = _some([f"{SAID[kind]} {family}" for kind, family in families])
        return self._on_regions(Change(f"without any {names}", veto or Veto(families=tuple(families))))

    def _without(self, steps: Sequence[Application]) -> Change:
        return self._on_regions(Change(f"without {_listed(steps)}", Veto(tuple(steps))))


#: Where the failure is looked for, in order.
_LOOKS: Sequence[Callable[[_Search], Culprit | None]] = (
    _Search._passes,
    functools.partial(_Search._alternatives, early=True),
    _Search._stage,
    _Search._region,
    _Search._without_inductor,
    _Search._in_inductor,
    _Search._all_kinds,
    _Search._required_decompositions,
    _Search._other_partitioner,
    _Search._crashes_captured,
    _Search._alternatives,
    _Search._whole_regions,
)


def _families(steps: Iterable[Application]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(step.family for step in steps))


def _steps_of(families: Sequence[tuple[str, str]], steps: Iterable[Application]) -> tuple[Application, ...]:
    return tuple(step for step in steps if step.family in families)


@contextlib.contextmanager
def _all_of(settings: Iterable[Setting]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for setting in settings:
            stack.enter_context(setting.context())
        yield


def _left_eager(some: Sequence[str], names: Sequence[str]) -> Change:
    said = "all regions" if len(some) == len(names) > 1 else f"region {', '.join(map(repr, some))}"
    return Change(f"{said} left eager", eager_regions=frozenset(some), generates_code=len(some) < len(names))


def _without_passes(some: Iterable[Application], steps: Sequence[Application]) -> Change:
    left_out = list(some)
    return Change(f"without {_listed(left_out)}", passes_left_out=frozenset(map(steps.index, left_out)))


def _listed(steps: Sequence[Application]) -> str:
    return _some([f"{SAID[step.kind]} {step.what}" for step in steps])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, ..., {names[-1]} ({len(names)})"
