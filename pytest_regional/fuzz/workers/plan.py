"""What a campaign fuzzes, and how its programs are divided into batches: the same on every machine that joins it."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, replace
from typing import Any

from pytest_regional._errors import RegionalError
from pytest_regional.fuzz.findings.strict_json import Field, MalformedError, as_json
from pytest_regional.fuzz.store import Store

#: How many programs a worker takes at a time: few enough that a batch ends within a minute.
BATCH = 20

#: The name of the entry that holds the plan, in the table ``campaign``.
_ENTRY = "plan"

#: More seconds than one program takes on any machine.
_MOST_SECONDS = 86_400

#: Seeds are below, so that every reader of JSON keeps them exactly.
SEEDS = 2**53


class PlanError(RegionalError, ValueError):
    """A campaign that cannot be: the store holds another one, or it names what there is not."""


@dataclass(frozen=True)
class Part:
    """One way of compiling: each batch has programs for one part.

    Attributes:
        backend: as ``--regional-backend`` takes it.
        device: as ``--regional-device`` takes it.
        mode: one of :data:`pytest_regional.fuzz.modes.MODES`.
    """

    backend: str
    device: str
    mode: str

    @property
    def name(self) -> str:
        """What it is called: ``reference, native``, and the device where that is not the mode's usual one."""
        usual = "cuda-emulated" if self.mode == "emulated" else "cpu"
        return ", ".join((self.backend, self.mode, *([self.device] if self.device != usual else [])))


@dataclass(frozen=True)
class Batch:
    """A few programs of one part, drawn from a seed of their own.

    Attributes:
        number: counts the batches of an environment, from 0.
        part: the number of its part.
        begin: how many programs of it are done.
        drawn: how many programs were drawn for these; with guidance, some are mutants.
    """

    number: int
    part: int
    begin: int = 0
    drawn: int = 0


@dataclass(frozen=True)
class Plan:
    """What is fuzzed.

    Attributes:
        parts: the ways of compiling; batches take turns.
        seed: what all programs are drawn from.
        environments: names of the Python environments, each of which checks the programs of all batches.
        programs: how many each environment checks; None for no limit.
        settings: names of the compiler settings that are drawn.
        guidance: one of :data:`pytest_regional.fuzz.guidance.GUIDANCE`.
        limit: seconds that one program may take.
        audit: whether what a backend disclaims is drawn as well.
        blames: whether the step of the compile that is to blame for a finding is searched for.
        batch: programs in a batch.
    """

    parts: tuple[Part, ...]
    seed: int
    environments: tuple[str, ...] = ("python",)
    programs: int | None = None
    settings: tuple[str, ...] = ()
    guidance: str = "kept"
    limit: float = 120.0
    audit: bool = False
    blames: bool = True
    batch: int = BATCH

    def part_of(self, number: int) -> int:
        """Return the number of the part that batch ``number`` is of."""
        return number % len(self.parts)

    def size_of(self, number: int) -> int:
        """Return how many programs batch ``number`` has; 0 where there is no such batch."""
        if self.programs is None:
            return self.batch
        return max(0, min(self.batch, self.programs - number * self.batch))

    def seed_of(self, number: int) -> int:
        """Return what the programs of batch ``number`` are drawn from: 63 bits that no other batch has."""
        text = f"{self.seed} {self.parts[self.part_of(number)].name} {number}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, which JSON gives back as it is."""
        made: dict[str, Any] = as_json(dataclasses.asdict(self))
        return made

    @classmethod
    def of(cls, document: Field) -> Plan:
        """Return the plan that plain data describes.

        Raises:
            MalformedError: it describes none.
        """
        at = document.fields([one.name for one in dataclasses.fields(cls)])
        return cls(
            tuple(_part(one) for one in at["parts"].items(100)),
            at["seed"].integer(0, SEEDS),
            tuple(one.line() for one in at["environments"].items(100)),
            at["programs"].or_none(lambda one: one.integer(0, 10**9)),
            tuple(one.line() for one in at["settings"].items()),
            at["guidance"].line(),
            _seconds(at["limit"]),
            at["audit"].flag(),
            at["blames"].flag(),
            at["batch"].integer(1, 10_000),
        )

    @property
    def identity(self) -> str:
        """Eight digits that plans have in common which differ in nothing but seed and number of programs."""
        same = dataclasses.replace(self, seed=0, programs=None)
        return hashlib.sha256(repr(same).encode()).hexdigest()[:8]

    def differences(self, other: Plan) -> list[str]:
        """Return in words what ``other`` fuzzes otherwise, seed and number of programs left out."""
        names = [one.name for one in dataclasses.fields(self) if one.name not in ("seed", "programs")]
        return [
            f"{name}: {_in_words(getattr(self, name))}, not {_in_words(getattr(other, name))}"
            for name in names
            if getattr(self, name) != getattr(other, name)
        ]


def joined(store: Store, plan: Plan | None) -> Plan:
    """Return the plan of the campaign in ``store``; where there is none, ``plan`` becomes it.

    A plan that is there has its own seed, and its own number of programs unless ``plan`` asks for more.

    Raises:
        PlanError: ``plan`` fuzzes something else; there is no plan at all; what is there is none.
    """
    while True:
        entry = store.read("campaign", _ENTRY)
        if entry is None:
            if plan is None:
                raise PlanError(f"{store.where} holds no campaign: say what to fuzz with --backend and --mode")
            if store.write("campaign", _ENTRY, plan.to_data(), version=0):
                return plan
            continue
        try:
            held = Plan.of(Field(entry.data))
        except MalformedError as error:
            raise PlanError(f"{store.where}: the plan of the campaign: {error}") from error
        if plan is None:
            return held
        if other := held.differences(plan):
            raise PlanError(
                f"{store.where} holds another campaign: {'; '.join(other)}. Give another --store, or another campaign "
                "of a server (?campaign=NAME)"
            )
        if held.programs == plan.programs:
            return held
        changed = replace(held, programs=plan.programs)
        if store.write("campaign", _ENTRY, changed.to_data(), version=entry.version):
            return changed


def _part(document: Field) -> Part:
    at = document.fields(("backend", "device", "mode"))
    return Part(at["backend"].line(), at["device"].line(), at["mode"].line())


def _seconds(document: Field) -> float:
    seconds = document.number()
    if not 0 < seconds <= _MOST_SECONDS:
        document.refuse(f"{seconds} is no time limit")
    return float(seconds)


def _in_words(value: Any) -> str:
    if isinstance(value, tuple):
        return "; ".join(one.name if isinstance(one, Part) else str(one) for one in value) or "none"
    return str(value)


__all__ = ["BATCH", "Batch", "Part", "Plan", "PlanError", "joined"]
