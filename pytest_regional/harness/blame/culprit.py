"""The terms of a search: a change, an experiment under it, what fails there (its signature), and the culprit found."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from pytest_regional._base.errors import OutOfTimeError
from pytest_regional._base.processes import cpu_seconds
from pytest_regional._base.text import first_line
from pytest_regional.backends.spec import BackendSpec

if TYPE_CHECKING:
    from pytest_regional._torch.vetoes import Application

Signature = frozenset[str]
"""What fails, each difference or exception by its kind and place; empty where nothing does."""

RAISED = "raised "
"""How a part of a signature begins that is of an exception."""

ASSERTED = RAISED + "by the check at "
"""How one begins that names the line of the check whose assertion fails."""

Outcome = Literal["fixed", "the same", "another failure"]


@dataclass(frozen=True)
class Change:
    """What one experiment does otherwise."""

    sentence: str = ""  # what is changed, as a clause: "without rewrite pad_mm at mm_1"; empty for nothing
    #: makes a context around the compile and the calls
    within: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    backend: Callable[..., Any] | None = None  # a Dynamo backend that compiles in place of the one under test
    #: another backend in place of the one under test, with all that its specification has
    instead: BackendSpec | None = field(default=None, hash=False)
    eager_regions: frozenset[str] = frozenset()  # regions that lose their annotation
    passes_left_out: frozenset[int] = frozenset()  # the user's graph passes that do not run, by their place in the list
    compiles: bool = True  # whether anything is compiled; else the program is called as it is
    generates_code: bool = True  # whether the backend generates code; not where what it was handed runs eagerly


@dataclass(frozen=True)
class Experiment:
    """One experiment that was made: what was changed, what became of the failure, and what failed instead.

    ``generated_code`` says whether the backend generated code, which is what an experiment costs.
    """

    sentence: str
    outcome: Outcome
    seconds: float
    signature: Signature = frozenset()
    generated_code: bool = True

    @property
    def crashed(self) -> bool:
        """Whether a compiler raised what failed: no comparison, and no assertion of the check's."""
        return is_exception(self.signature) and not any(part.startswith(ASSERTED) for part in self.signature)

    def as_data(self) -> dict[str, Any]:
        """Return what a JSON file holds of it."""
        data = {"changed": self.sentence, "outcome": self.outcome, "seconds": round(self.seconds, 2)}
        return {**data, "compiled": self.generated_code}


_USUAL_SECONDS = 60.0


@dataclass
class Experiments:
    """Makes experiments with one failure, within limits, and keeps what they showed."""

    reproduce: Callable[[Change], Signature]  # compiles and calls the program under a change; returns what fails
    usual: Signature  # what fails without a change
    most: int = 60  # how many experiments may be made; more where there is more time
    #: of CPU time that they may take together: it is the same on a machine that does other work
    seconds: float = _USUAL_SECONDS
    made: list[Experiment] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start the clock."""
        if not self.usual:
            raise ValueError("nothing fails, so nothing is to blame")
        self._started = cpu_seconds()
        self.most = max(self.most, int(self.seconds)) if self.seconds > _USUAL_SECONDS else self.most
        self.aim_at(self.usual)

    def aim_at(self, failing: Signature) -> None:
        """From now on see after one of several values that are wrong: they may have causes of their own."""
        self._aim = self.usual if is_exception(self.usual) else frozenset({min(failing, key=_order)})

    def remaining(self) -> Signature:
        """Return what of the usual failure remained in the last experiment that fixed what was aimed at."""
        last = next((one for one in reversed(self.made) if one.outcome == "fixed"), None)
        return last.signature & self.usual if last else frozenset()

    @property
    def raises(self) -> bool:
        """Whether an exception is what fails, and no comparison."""
        return is_exception(self.usual)

    @property
    def left(self) -> int:
        """How many may still be made, if time allows."""
        return self.most - len(self.made)

    def outcome_of(self, change: Change) -> Outcome:
        """Make one experiment."""
        if self.left <= 0 or cpu_seconds() - self._started > self.seconds:
            raise OutOfTimeError
        began = time.monotonic()
        signature = self.reproduce(change)
        if signature & self._aim:
            outcome: Outcome = "the same"
        else:
            outcome = "fixed" if signature <= self.usual else "another failure"
        seconds = time.monotonic() - began
        self.made.append(Experiment(change.sentence, outcome, seconds, signature, change.generates_code))
        return outcome

    def signature_under(self, change: Change) -> Signature:
        """Return what fails under a change: what was seen when it was tried last, or now."""
        tried = [one for one in self.made if one.sentence == change.sentence]
        if not tried:
            self.outcome_of(change)
        return (tried or self.made)[-1].signature

    def known_outcome(self, change: Change) -> Outcome | None:
        """Return what became of the failure when ``change`` was tried last, if it was."""
        return next((one.outcome for one in reversed(self.made) if one.sentence == change.sentence), None)

    def fixes(self, change: Change) -> bool:
        """Say whether the failure is gone under ``change``; another failure in its place says nothing."""
        return self.outcome_of(change) == "fixed"

    def fails(self, change: Change) -> bool:
        """Say whether the same still fails under ``change``."""
        return self.outcome_of(change) == "the same"


def is_exception(signature: Signature) -> bool:
    """Return whether what fails is an exception, and no comparison."""
    return any(part.startswith(RAISED) for part in signature)


def _order(part: str) -> tuple[bool, str]:
    """Return what sorts the parts of a signature: the first call comes before the second."""
    return "second call" in part, part.partition(" of ")[2] or part


T = TypeVar("T")


def few_that_fix(steps: Sequence[T], fixes: Callable[[Sequence[T]], bool], most: int) -> tuple[T, ...]:
    """Return few of ``steps`` whose absence fixes a failure, which the absence of all of them does.

    First by halves, which takes log2(n) experiments where one step alone is to blame; else by delta debugging (Zeller
    and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002), which needs no step to be alone. After
    ``most`` experiments with ``fixes`` it is what is known by then.
    """
    if not steps:
        raise ValueError("there is nothing to leave out")
    known: dict[tuple[T, ...], bool] = {}

    def fixed_without(some: list[T]) -> bool:
        if tuple(some) not in known:
            if len(known) == most:
                return False
            known[tuple(some)] = fixes(some)
        return known[tuple(some)]

    found = list(steps)
    while len(found) > 1:
        middle = len(found) // 2
        better = next((half for half in (found[:middle], found[middle:]) if fixed_without(half)), None)
        if better is None:
            break
        found = better
    parts = 2
    while len(found) > 1:
        size = -(-len(found) // parts)
        pieces = [found[start : start + size] for start in range(0, len(found), size)]
        without = ([one for other in pieces if other is not piece for one in other] for piece in pieces)
        smaller = next((rest for rest in without if len(pieces) > 1 and rest and fixed_without(rest)), None)
        if smaller is not None:
            found, parts = smaller, max(parts - 1, 2)
        elif size == 1:
            break
        else:
            parts = min(2 * parts, len(found))
    return tuple(found)


BlameDepth = Literal["off", "region", "deep"]
"""How far a failure is followed up: not, to a region (a failed comparison with eager), or to a step of the compile."""


@dataclass(frozen=True)
class FollowUp:
    """How far a failure is followed up, as ``--regional-blame`` says it: ``"region"``, ``"deep"``, ``"deep:300"``."""

    depth: BlameDepth = "region"  # how far
    seconds: float = 60.0  # of CPU time that one search may take, this process and the compilers that it started

    @classmethod
    def of(cls, text: str) -> FollowUp:
        """Return what a text says."""
        depth, _, seconds = text.partition(":")
        numeral = seconds.isdecimal() and int(seconds) > 0 if ":" in text else True
        if depth not in get_args(BlameDepth) or not numeral or (seconds and depth != "deep"):
            known = ", ".join(get_args(BlameDepth))
            raise ValueError(f"expected one of {known}, or deep:S with the CPU seconds S that a search may take")
        return cls(cast(BlameDepth, depth), float(seconds or cls.seconds))

    def __str__(self) -> str:
        """Return the text that says it."""
        return f"{self.depth}:{self.seconds:g}" if self.depth == "deep" else self.depth


_OfCapture = Literal["eager", "dynamo", "aot_autograd", "partitioner"]
_OfBackend = Literal["backend", "region", "partitioning", "extraction", "sharing", "settings", "order", "call", "pass"]
_OfInductor = Literal["rewrite", "decomposition", "lowering", "fusion", "layout", "scheduling", "memory", "codegen"]
Layer = Literal["nothing", "flaky", _OfCapture, _OfBackend, _OfInductor, "cache", "unknown"]

Confidence = Literal["confirmed", "necessary", "unknown"]
"""``confirmed``: leaving it out alone fixes the failure, and nothing else that was tried does while it still acts.
``necessary``: it fixes together with others, or others fix as well. ``unknown``: nothing that was tried does."""

#: What kinds of steps are called in a sentence.
SAID = {
    "graph_pass": "graph pass",
    "pass": "pass",
    "pre_grad_pass": "pre-grad pass",
    "joint_graph_pass": "joint-graph pass",
    "post_grad_pass": "post-grad pass",
    "rewrite": "rewrite",
    "decomposition": "decomposition of",
    "fusion": "fusion of",
    "lowering": "lowering of",
}

_SENTENCES: Mapping[str, str] = {
    "nothing": "nothing can be blamed: the failure does not come again where nothing is changed",
    "eager": "no compiler: the same fails where nothing is compiled",
    "dynamo": "Dynamo: the graph that it captured is wrong already when it runs eagerly",
    "aot_autograd": "AOTAutograd: its graphs are wrong already when they run eagerly",
}


@dataclass(frozen=True)
class Culprit:
    """Where a failure comes from.

    Attributes:
        layer: the layer of the compiler.
        steps: the steps of that layer that are to blame; empty where the layer has none.
        regions: the regions whose compiled code is wrong; empty where the program has none, or it was not looked for.
        setting: under what the failure is gone, for layers that are settings or options: "no vectorized code".
        confidence: see :data:`Confidence`.
        also: other steps or settings, with any one of which left out it is gone as well.
        others: culprits of other values that are wrong, with which this one has nothing to do.
        lowerings: for layers behind lowering, operators whose fallback fixes it as well: where to look.
        first_wrong: the first value of the program that differs from eager, in a sentence; of a failed comparison.
        ended_early: whether the search ran out of time, or of experiments.
        experiments: the evidence, in order.
        not_tried: what this torch lacks, so that steps of it could not be left out.
        difference: for a layer of the backend, the first thing that another backend, which is right, does otherwise;
            for a cache, in what the calls of the backend differ that had one answer.
        without_inductor: whether regions fail also where their graphs are interpreted, so that it is not Inductor.
        failed: what the search itself raised; it must not hide the failure that was searched.
    """

    layer: Layer
    steps: tuple[Application, ...] = ()
    regions: tuple[str, ...] = ()
    setting: str = ""
    confidence: Confidence = "unknown"
    also: tuple[Culprit, ...] = ()
    others: tuple[Culprit, ...] = ()
    lowerings: tuple[str, ...] = ()
    first_wrong: str = ""
    ended_early: bool = False
    experiments: tuple[Experiment, ...] = ()
    not_tried: tuple[str, ...] = ()
    difference: str = ""
    without_inductor: bool = False
    failed: str = ""

    @classmethod
    def of_failed_search(cls, error: BaseException) -> Culprit:
        """Return the record of a search that raised."""
        return cls("unknown", failed=first_line(error))

    @property
    def sentence(self) -> str:
        """The answer."""
        early = "; the search ran out of time" if self.ended_early else ""
        others = "".join(f"; and of another value: {other.sentence}" for other in self.others)
        if not self.regions or self.layer == "region":
            return self._said + early + others
        return f"{_named(self.regions)}: {self._said}{early}{others}"

    @property
    def _said(self) -> str:
        if self.failed:
            return f"the search for it failed: {self.failed}"
        if self.layer in _SENTENCES:
            is_doubtful = self.layer == "eager" and self.confidence == "unknown"
            doubt = ", as it has to if the check is about the compile" if is_doubtful else ""
            return _SENTENCES[self.layer] + doubt
        if self.layer == "partitioner" and not self.setting:
            return "the partitioner: AOTAutograd's graphs are wrong when they run eagerly, and right with the other one"
        if self.layer == "flaky":
            unchanged = [one.outcome == "the same" for one in self.experiments if not one.sentence]
            again = f"it came again in {sum(unchanged)} of {len(unchanged)} runs in which nothing is changed"
            said = "one change fixes it now, and now not" if all(unchanged) else again
            return f"a flaky failure: {said}; nothing can be blamed"
        if self.difference:
            eager = "wrong where interpreted, " if self.without_inductor else ""
            stage = _LAYERS.get(self.layer, self.layer)
            return f"{stage}: {eager}right with {self.setting} ({self.confidence}); {self.difference}"
        if self.layer == "region":
            interpreted = ", wrong where interpreted, so that it is not Inductor" if self.without_inductor else ""
            no_step = "; no single step fixes it" if not self.ended_early and not self.without_inductor else ""
            return f"{_named(self.regions)}: right where left eager{interpreted} ({self.confidence}){no_step}"
        if self.also:
            named = ", ".join(one._named_steps for one in (self, *self.also))
            return f"one of {named}: right where any one of them is left out ({self.confidence})"
        if self.setting:
            near = f"; so is the fallback of {', '.join(self.lowerings)}" if self.lowerings else ""
            return f"{_LAYERS.get(self.layer, self.layer)}: right with {self.setting} ({self.confidence}){near}"
        if self.layer == "backend" and self.confidence == "confirmed":
            return "the backend: wrong with every region left eager, and right where AOTAutograd's graphs run eagerly"
        if self.layer == "backend":
            return f"the backend: right where AOTAutograd's graphs run eagerly ({self.confidence}); {self._no_step}"
        if self.layer == "unknown":
            return f"unknown: {self._no_step}"
        without = "that is left out" if len(self.steps) == 1 else "these are left out together"
        return f"{self._named_steps}: right where {without} ({self.confidence})"

    @property
    def _named_steps(self) -> str:
        if self.setting:
            return f"{_LAYERS.get(self.layer, self.layer)} ({self.setting})"
        said = (f"{SAID[one.kind]} {one.what}" + (f" ({one.where})" if one.where else "") for one in self.steps)
        names = list(dict.fromkeys(said))
        return " and ".join([*names[:3], f"{len(names) - 3} more"] if len(names) > 4 else names)

    @property
    def _no_step(self) -> str:
        tried = dict.fromkeys(one.sentence for one in self.experiments if one.sentence and one.outcome != "fixed")
        shown = [*tried][:6] + ([f"{len(tried) - 6} other changes"] if len(tried) > 6 else [])
        return f"the failure remains, or another one comes, {'; '.join(shown)}" if shown else "no single step fixes it"

    @property
    def evidence(self) -> str:
        """The first wrong value, if one is known; then each experiment: its outcome, its seconds, what was changed."""
        made = [
            f"{one.outcome:<15} {one.seconds:5.1f} s  {one.sentence or 'nothing changed'}" for one in self.experiments
        ]
        return "\n".join(([f"first wrong value: {self.first_wrong}"] if self.first_wrong else []) + made)

    def as_data(self) -> dict[str, Any]:
        """Return what a JSON file holds of it."""
        return {
            "sentence": self.sentence,
            "layer": self.layer,
            "steps": [f"{step.kind} {step.what}" for step in self.steps],
            "regions": list(self.regions),
            "setting": self.setting,
            "difference": self.difference,
            "without_inductor": self.without_inductor,
            "confidence": self.confidence,
            "also": [{name: one.as_data()[name] for name in ("layer", "steps", "setting")} for one in self.also],
            "first_wrong": self.first_wrong,
            "ended_early": self.ended_early,
            "others": [other.as_data() for other in self.others],
            "experiments": [one.as_data() for one in self.experiments],
            "not_tried": list(self.not_tried),
        }


_LAYERS = {
    "codegen": "code generation",
    "memory": "reuse of memory",
    "layout": "memory layouts",
    "backend": "the backend",
    "partitioner": "the partitioner",
    "partitioning": "the backend's partitions",
    "extraction": "the graph that the backend hands to Inductor",
    "sharing": "the backend's sharing of compiled regions",
    "settings": "the settings that the backend compiles a region with",
    "order": "the order in which the backend runs things",
    "call": "how the backend calls a region's code",
    "pass": "the backend's graph passes",
}


def _named(names: tuple[str, ...]) -> str:
    return ("region " if len(names) == 1 else "regions ") + ", ".join(map(repr, names))
