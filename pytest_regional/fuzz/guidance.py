"""Guidance by coverage: whether the next program is drawn, or a mutant of one that reached something new.

What a program reaches are its coverage keys (:mod:`pytest_regional.fuzz.decisions`). A program that reaches a key that
none before it did is kept (:mod:`pytest_regional.fuzz.corpus`), unless it shows a finding: its mutants would show the
same one. Mutants are made of kept programs whose keys are rare.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_regional.fuzz.corpus import Corpus, KeptPrograms
from pytest_regional.fuzz.decisions import coverage_keys, decisions_recorded
from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.mutation import is_drawable, mutated
from pytest_regional.fuzz.features import features_of
from pytest_regional.fuzz.model.program import Program

#: Of the programs, the share that is mutated rather than drawn, once some are kept.
MUTATED = 0.5

#: The folder of kept programs, in the folder of findings.
KEPT = "corpus"


def corpus_folder(findings: Path, mode: str) -> Path:
    """Return the folder of programs that campaigns in ``mode`` keep for later ones."""
    return findings / KEPT / mode


@dataclass
class GuidanceCounts:
    """What guidance did in one campaign.

    Attributes:
        replayed: how many programs of an earlier campaign were checked.
        drawn: how many were drawn.
        mutated: how many were mutants.
        kept: how many programs the corpus holds.
        keys: how many coverage keys were reached.
    """

    replayed: int = 0
    drawn: int = 0
    mutated: int = 0
    kept: int = 0
    keys: int = 0


class Guidance:
    """Guidance of one campaign.

    Args:
        seed: what its choices are drawn from.
        options: what mutants may hold, as for programs that are drawn.
        folder: programs of earlier campaigns, every second one until all are checked; those that this one keeps are
            written there, and those that reach nothing of their own any more are deleted.
        part: which share of these programs is checked, of ``parts``: each shard has its own.
        parts: how many shards there are.
        share: of the programs, the share that is mutated rather than drawn.
    """

    def __init__(
        self,
        seed: int,
        options: Options | None = None,
        folder: KeptPrograms | None = None,
        *,
        part: int = 0,
        parts: int = 1,
        share: float = MUTATED,
    ) -> None:
        self.corpus = Corpus(folder=folder)
        self._options, self._folder, self._share = options or Options(), folder, share
        self._part, self._parts = part, parts
        self._chance = random.Random(f"guidance {seed}")
        self._counts = {"replayed": 0, "drawn": 0, "mutated": 0}
        self._origin = "drawn"
        self._replayed: Program | None = None

    @property
    def counts(self) -> GuidanceCounts:
        """What it did so far."""
        return GuidanceCounts(**self._counts, kept=len(self.corpus), keys=len(self.corpus.reached))

    def guided(self, drawn: Iterator[Program]) -> Iterator[Program]:
        """Yield programs without end: some from ``drawn``, some mutants, and between them those of the folder."""
        kept = self._folder.programs(self._part, self._parts) if self._folder else iter(())
        for program in filter(lambda one: is_drawable(one, self._options), kept):
            self._origin, self._replayed = "replayed", program
            yield program
            yield self._next(drawn)
        while True:
            yield self._next(drawn)

    def _next(self, drawn: Iterator[Program]) -> Program:
        mutant = self._mutant()
        self._origin = "drawn" if mutant is None else "mutated"
        return next(drawn) if mutant is None else mutant

    def _mutant(self) -> Program | None:
        if not len(self.corpus) or self._chance.random() >= self._share:
            return None
        return mutated(self.corpus.pick(self._chance), self._chance, self._options)

    @contextlib.contextmanager
    def watching(self, program: Program) -> Iterator[CheckedProgram]:
        """Record what ``program`` reaches while it is checked, and keep it if that is new.

        The caller says on what it gets whether the program failed. A program that raises is not kept.
        """
        self._counts[self._origin] += 1
        checked = CheckedProgram()
        with decisions_recorded() as decisions:
            yield checked
        keys = coverage_keys(features_of(program), decisions.words)
        kept = bool(self.corpus.count(keys)) and not checked.failed and self.corpus.keep(program, keys)
        if self._origin == "replayed" and not kept and self._folder and self._replayed:
            self._folder.drop(self._replayed)


@dataclass
class CheckedProgram:
    """What the check of one program says to guidance.

    Attributes:
        failed: whether it violates an oracle, as a known finding says or not.
    """

    failed: bool = False


__all__ = ["CheckedProgram", "Guidance", "GuidanceCounts", "corpus_folder"]
