"""Random sequences of cache operations, and campaigns of them: compiles, restarts, changes and damaged files.

A walk over a table of rules draws what :mod:`~pytest_regional.fuzz.caches.sequences` executes. It does not look at the
backend, so that a seed draws the same sequences whatever the backend answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_regional._torch.distributed import has_distributed
from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.caches.findings import (
    CacheSequence,
    SequenceFinding,
    features_of_sequence,
    possible_features,
    reduce_sequence,
)
from pytest_regional.fuzz.caches.sequences import (
    ASKS_FOR_SIZE,
    COLLECTIVES,
    DAMAGES,
    FEW,
    GROUPS,
    MANY,
    MESHES,
    PROGRAMS,
    STATES,
    Clear,
    Compile,
    Damage,
    Event,
    Key,
    NewProcess,
    Restart,
    canonical,
    run_sequence,
)
from pytest_regional.fuzz.campaign import Failure, Known
from pytest_regional.fuzz.findings.folder import AnyFinding, installed_versions, signature_of
from pytest_regional.fuzz.oracles import OracleViolationError

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

#: Sequences longer than this find nothing that shorter ones do not, and take as long as two of them.
LONGEST_SEQUENCE = 10

#: Files of a cache are damaged by their number, taken modulo how many there are.
_FILES = 64

#: Of the turns that could compile in a new process, which takes seconds, one in so many does.
_RARELY = 8


def fields_of_keys(
    *, passes: bool, without: Collection[str] = (), collectives: bool = False
) -> dict[str, tuple[Any, ...]]:
    """Return the values that each field of a key may have, the simplest first.

    Args:
        passes: whether there are pre-grad passes.
        without: capabilities that no sequence needs: ``backward``, ``dynamic_shapes``, ``region_ids``,
            ``region_configs``, ``pre_grad_pass_lists``.
        collectives: whether there are programs with collectives, and process groups.
    """
    # Without collectives no field is drawn for them, so that a seed draws the sequences that it drew before.
    ranks: dict[str, tuple[Any, ...]] = dict(_RANKS) if collectives else {}
    lists = "pre_grad_pass_lists" not in without
    return {
        "program": (*PROGRAMS, *ranks.pop("program", ())),
        "region": ("a", None) if "region_ids" in without else ("a", "b", None),
        "fusion": (None,) if "region_configs" in without else (None, 8),
        "passes": tuple(one for one in _PASSES if lists or len(one) < 2) if passes else ((),),
        "timing": ("late", "default", "early") if passes else ("late",),
        "size": (FEW, FEW - 1, MANY, MANY + 1),
        "dynamic": (False,) if "dynamic_shapes" in without else (False, True),
        "training": (False,) if "backward" in without else (False, True),
        "state": tuple(STATES),
        **ranks,
    }


_RANKS: Mapping[str, tuple[Any, ...]] = {
    "program": COLLECTIVES,
    "world": (0, 2, 4),
    "rank": (0, 1),
    "mesh": ("", *MESHES),
    "group": GROUPS,
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


#: Programs that differ in where the boundary of their region stands.
BOUNDARIES = {"plain": "shorter region", "shorter region": "plain"}


class Walk:
    """One random sequence while it is drawn. Few things change in it, so that keys come back.

    Args:
        source: of random numbers.
        values: what the fields of keys may be.
        processes: whether some compiles happen in new processes.

    Attributes:
        events: the sequence so far.
        before: what was compiled last.
        varied: the fields that change.
    """

    def __init__(self, source: random.Random, values: Mapping[str, Sequence[Any]], *, processes: bool) -> None:
        self.source, self.values, self.processes = source, values, processes
        self.events: list[Event] = []
        # Most of the time under no special setting: what holds for two settings says little. Symbols say the most of
        # a program that asks for its size.
        weighted = {
            "state": ("",) * (2 * len(values["state"])) + tuple(values["state"]),
            "program": (*values["program"], ASKS_FOR_SIZE, ASKS_FOR_SIZE),
            "dynamic": (*values["dynamic"], *values["dynamic"][1:]),
        }
        self.before = canonical(Key(**{name: source.choice(found) for name, found in {**values, **weighted}.items()}))
        free = [name for name, found in values.items() if len(found) > 1]
        self.varied = source.sample(free, min(source.randint(1, 3), len(free)))

    def run(self, length: int) -> tuple[Event, ...]:
        """Take ``length`` rules that are allowed, one after the other; return the sequence."""
        for _ in range(length):
            self.source.choice([rule for rule, is_allowed in RULES.values() if is_allowed(self)])(self)
        return tuple(self.events)

    def change(self, *names: str) -> None:
        """Compile what was compiled last with other values of some fields: nothing of the old must answer."""
        changes = {name: self.source.choice(self.values[name]) for name in names}
        self._compile(canonical(replace(self.before, **changes)))

    def reverse_passes(self) -> None:
        """Compile the same with its passes in the opposite order."""
        self._compile(replace(self.before, passes=self.before.passes[::-1]))

    def move_the_boundary(self) -> None:
        """Compile the same with the boundary of its region elsewhere."""
        self._compile(replace(self.before, program=BOUNDARIES[self.before.program]))

    def compile_again(self) -> None:
        """Compile the same once more, in this process or the next."""
        if self.source.random() < 0.5:
            self.events.append(Restart())
        self._compile(self.before)

    def damage_a_file(self) -> None:
        """Damage a file of the cache."""
        self.events.append(Damage(self.source.randrange(_FILES), self.source.choice(sorted(DAMAGES))))

    def compile_in_a_new_process(self) -> None:
        """Compile what was compiled last in another process; not each time, since it takes seconds."""
        if not self.source.randrange(_RARELY):
            self.events.append(NewProcess(self.before))

    def _compile(self, key: Key) -> None:
        self.before = key
        self.events.append(Compile(key))


#: What may happen next, and when. Another rank gives the same result, unless the program reads the rank.
RULES: Mapping[str, tuple[Callable[[Walk], None], Callable[[Walk], bool]]] = {
    "compile and run": (lambda walk: walk.change(*walk.varied), lambda walk: True),
    "compile again": (Walk.compile_again, lambda walk: bool(walk.events)),
    "change one thing": (lambda walk: walk.change(walk.source.choice(walk.varied)), lambda walk: bool(walk.events)),
    "reverse passes": (Walk.reverse_passes, lambda walk: len(walk.before.passes) > 1),
    "move the boundary": (
        Walk.move_the_boundary,
        lambda walk: walk.before.region is not None and walk.before.program in BOUNDARIES,
    ),
    "change the size": (lambda walk: walk.change("size"), lambda walk: walk.before.dynamic),
    "change the rank": (lambda walk: walk.change("rank"), lambda walk: walk.before.world > 0),
    "change the world size": (lambda walk: walk.change("world"), lambda walk: walk.before.world > 0),
    "change the mesh": (lambda walk: walk.change("mesh"), lambda walk: bool(walk.before.mesh)),
    "change the process group": (
        lambda walk: walk.change("group"),
        lambda walk: walk.before.program in ("all reduce", "all gather"),
    ),
    "restart": (lambda walk: walk.events.append(Restart()), lambda walk: bool(walk.events)),
    "damage a file": (Walk.damage_a_file, lambda walk: bool(walk.events)),
    "clear": (lambda walk: walk.events.append(Clear()), lambda walk: bool(walk.events)),
    "compile in a new process": (
        Walk.compile_in_a_new_process,
        lambda walk: walk.processes and bool(walk.events),
    ),
}


def sequences(values: Mapping[str, Sequence[Any]], seed: int, *, processes: bool = True) -> Iterator[tuple[Event, ...]]:
    """Yield sequences without end, the same for the same seed.

    Args:
        values: what the fields of keys may be: see :func:`fields_of_keys`.
        seed: what they are drawn from.
        processes: whether some compiles happen in new processes.
    """
    source = random.Random(seed)
    while True:
        yield Walk(source, values, processes=processes).run(source.randint(1, LONGEST_SEQUENCE))


def sequences_for(
    regional: Regional, seed: int, *, processes: bool = True, everything: bool = False
) -> Iterator[tuple[Event, ...]]:
    """Yield sequences of what the backend under test has; with ``everything``, of what it disclaims as well."""
    needed = ("backward", "dynamic_shapes", "region_ids", "region_configs", "pre_grad_pass_lists")
    without = [name for name in needed if not everything and not regional.supports(name)]
    passes = everything or bool(regional.supports("pre_grad_timing"))
    # The fake process group is of the CPU. PyTorch's cache stores no graph with a collective outside of its regions
    # (docs/findings/collective_is_not_saved.py).
    own = everything or bool(regional.supports("outer_cache"))
    collectives = own and has_distributed() and regional.device_under_test.kind == "cpu"
    values = fields_of_keys(passes=passes, without=without, collectives=collectives)
    return sequences(values, seed, processes=processes)


def run_random_sequences(
    regional: Regional,
    budget: Budget,
    seed: int,
    *,
    mode: str = "interpret",
    processes: bool = True,
) -> int:
    """Execute sequences until the budget is spent; return how many.

    Args:
        regional: the harness.
        budget: how many sequences, or how long.
        seed: what they are drawn from.
        mode: the mode that they run in.
        processes: whether some compiles happen in new processes.

    Raises:
        OracleViolationError: the first sequence that breaks the model.
    """
    drawn = sequences_for(regional, seed, processes=processes)
    clock = budget.start()
    while not clock.over:
        run_sequence(regional, next(drawn), mode=mode)
        clock.spent += 1
    return clock.spent


@dataclass
class CacheSequences:
    """Sequences of cache operations on one backend in one mode, against a model of what has to answer.

    Attributes:
        regional: the harness.
        backend: the backend, as ``--regional-backend`` takes it.
        mode: the mode that sequences run in.
        processes: whether some compiles happen in new processes; not in mode ``interpret``, whose interpreted regions
            are of one process.
        everything: whether sequences hold what the backend disclaims as well.
    """

    regional: Regional
    backend: str = "reference"
    mode: str = "native"
    processes: bool = True
    everything: bool = False
    unit: str = "sequence"

    def draw(self, seed: int) -> Iterator[CacheSequence]:
        """Yield sequences without end, the same for the same seed."""
        return sequences_for(self.regional, seed, processes=self.processes, everything=self.everything)

    def needs(self, example: CacheSequence) -> frozenset[str]:
        """Return nothing: only what the backend claims is drawn."""
        return frozenset()

    def shows(self, finding: AnyFinding, example: CacheSequence) -> bool:
        """Return False: which compile fails is not known before the sequence runs."""
        return False

    def explains(self, finding: AnyFinding) -> bool:
        """Return whether ``finding`` is a sequence's, on this backend."""
        return isinstance(finding, SequenceFinding) and finding.backend == self.backend

    def check(self, example: CacheSequence, known: Known) -> Failure[CacheSequence] | None:
        """Execute the sequence; return what breaks the model, and the events up to that."""
        events = iter(example)
        violation = self._violation(events)
        if violation is None:
            return None
        executed = example[: len(example) - len(list(events))]
        # A defect may show between the last compile and any other.
        return None if known(violation, *possible_features(executed)) else Failure(violation, executed)

    def check_again(self, example: CacheSequence, oracle: str, *, blame: bool = False) -> OracleViolationError | None:
        """Execute the sequence once more; there is one oracle, and no region to blame."""
        return self._violation(iter(example))

    def reduce(
        self, example: CacheSequence, still_fails: Callable[[CacheSequence], bool], seconds: float
    ) -> CacheSequence:
        """Return a shorter sequence that ``still_fails``."""
        return reduce_sequence(example, still_fails, seconds=seconds)

    def finding(
        self, reduced: CacheSequence, original: CacheSequence, violation: OracleViolationError
    ) -> SequenceFinding:
        """Return the finding that ``violation`` is."""
        return SequenceFinding(
            signature_of(violation).with_features(features_of_sequence(reduced)),
            reduced,
            original,
            violation.detail,
            backend=self.backend,
            device=self.regional.device_under_test.name,
            mode=self.mode,
            versions=installed_versions(),
        )

    def _violation(self, events: Iterator[Event]) -> OracleViolationError | None:
        try:
            run_sequence(self.regional, events, mode=self.mode)
        except OracleViolationError as violation:
            return violation
        return None
