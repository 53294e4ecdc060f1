"""What a cache of whole results has to answer: a model of a page, to hold a backend against.

The model knows no compiler: a set of entries that are on disk, a set of keys that this process holds, and what each
event does to them. Imports neither torch nor hypothesis.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Answer = Literal["memory", "hit", "miss", "either"]

#: Up to ``FEW`` rows, and from ``MANY`` on, the program that asks for its size is one graph.
FEW, MANY = 3, 7
ASKS_FOR_SIZE = "cut off"


@dataclass(frozen=True)
class Key:
    """Everything that makes two compiles different ones.

    Attributes:
        program: which of the machine's programs.
        region: the id of its region; None leaves its ops unannotated.
        fusion: the ``max_fusion_size`` of its region; None leaves the setting out.
        passes: uuids of its pre-grad passes in order, which change nothing; None for a pass that has none.
        timing: when they run.
        size: of the input's first dimension.
        dynamic: whether sizes are symbols; then one graph serves several.
        training: whether gradients are asked for.
        state: name of a setting of the process.
    """

    program: str = "plain"
    region: str | None = "a"
    fusion: int | None = None
    passes: tuple[str | None, ...] = ()
    timing: str = "late"
    size: int = FEW
    dynamic: bool = False
    training: bool = False
    state: str = ""

    def __str__(self) -> str:
        parts = [self.program, f"region {self.region!r}", f"size {self.size}"]
        parts += [f"max_fusion_size {self.fusion}"] if self.fusion is not None else []
        parts += [f"passes {self.passes} {self.timing}"] if self.passes else []
        parts += ["dynamic"] if self.dynamic else []
        parts += ["training"] if self.training else []
        parts += [self.state] if self.state else []
        return ", ".join(parts)

    @property
    def early(self) -> bool:
        """Whether the passes run before the lookup: as asked, or because the key cannot say what they would do."""
        return bool(self.passes) and (self.timing == "early" or None in self.passes)

    @property
    def held(self) -> Key:
        """What a process holds compiled: with symbols it serves all sizes that its guards allow."""
        if not self.dynamic:
            return self
        return replace(self, size=MANY if self.program == ASKS_FOR_SIZE and self.size >= MANY else FEW)

    @property
    def entry(self) -> Key:
        """What is stored: passes that ran before the lookup are no part of it, and these changed nothing."""
        return replace(self.held, passes=() if self.early else self.passes, timing="late")

    def runs(self, lookups: int, misses: int) -> int:
        """Return how often passes are to run."""
        return len(self.passes) * (lookups if self.early else misses)


def canonical(key: Key) -> Key:
    """Return the key of the same compile: what says nothing where something else is missing is left out."""
    if key.region is None:
        # Settings go with the annotation, and so does where its border stood.
        key = replace(key, fusion=None, program="plain" if key.program == "shorter region" else key.program)
    if not key.passes:
        key = replace(key, timing="late")
    elif None in key.passes and key.timing == "late":
        key = replace(key, timing="default")
    return key if key.dynamic else replace(key, size=FEW if key.size < MANY else MANY)


@dataclass
class CacheModel:
    """What is where.

    Attributes:
        stored: entries that are on disk.
        doubtful: entries whose files may be damaged: hit or miss, both are right, wrong values never.
        live: keys that this process holds compiled.
    """

    stored: set[Key] = field(default_factory=set)
    doubtful: set[Key] = field(default_factory=set)
    live: set[Key] = field(default_factory=set)

    def answer(self, key: Key) -> Answer:
        """Return what a compile of ``key`` in this process has to find."""
        return "memory" if key.held in self.live else self.answer_elsewhere(key)

    def answer_elsewhere(self, key: Key) -> Answer:
        """Return what a compile of ``key`` in another process has to find."""
        if key.entry in self.doubtful:
            return "either"
        return "hit" if key.entry in self.stored else "miss"

    def ran(self, key: Key) -> None:
        """Note a compile in this process; one that was compiled already touches no file."""
        if key.held not in self.live:
            self.live.add(key.held)
            self.ran_elsewhere(key)

    def ran_elsewhere(self, key: Key) -> None:
        """Note a compile in another process, which stores what it did not find."""
        self.stored.add(key.entry)
        self.doubtful.discard(key.entry)

    def restarted(self) -> None:
        """Forget what this process holds."""
        self.live.clear()

    def damaged(self) -> None:
        """Note that some file is damaged."""
        self.doubtful |= self.stored

    def cleared(self) -> None:
        """Note that all files are gone."""
        self.stored.clear()
        self.doubtful.clear()
