"""What a cache of whole results has to answer: a model of a page, to hold a backend against.

The model knows no compiler: a set of keys that are on disk, a set that this process holds, and what each event does to
them. Imports neither torch nor hypothesis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Answer = Literal["memory", "hit", "miss", "either"]


@dataclass(frozen=True)
class Key:
    """Everything that makes two compiles different ones.

    Attributes:
        program: which of the machine's programs.
        region: the id of its region; None leaves its ops unannotated.
        fusion: the ``max_fusion_size`` of its region; None leaves the setting out.
        uuid: of the pre-grad pass, which runs late; None means that there is no pass.
        size: of the input's first dimension, which is static.
        training: whether gradients are asked for.
    """

    program: int = 0
    region: str | None = "a"
    fusion: int | None = None
    uuid: str | None = None
    size: int = 4
    training: bool = False

    def __str__(self) -> str:
        parts = [f"program {self.program}", f"region {self.region!r}", f"size {self.size}"]
        parts += [f"max_fusion_size {self.fusion}"] if self.fusion is not None else []
        parts += [f"pass {self.uuid!r}"] if self.uuid is not None else []
        parts += ["training"] if self.training else []
        return ", ".join(parts)


@dataclass
class CacheModel:
    """What is where.

    Attributes:
        stored: keys whose result is on disk.
        doubtful: keys whose files may be damaged: hit or miss, both are right, wrong values never.
        live: keys that this process holds compiled.
    """

    stored: set[Key] = field(default_factory=set)
    doubtful: set[Key] = field(default_factory=set)
    live: set[Key] = field(default_factory=set)

    def answer(self, key: Key) -> Answer:
        """Return what a compile of ``key`` in this process has to find."""
        return "memory" if key in self.live else self.answer_elsewhere(key)

    def answer_elsewhere(self, key: Key) -> Answer:
        """Return what a compile of ``key`` in another process has to find."""
        if key in self.doubtful:
            return "either"
        return "hit" if key in self.stored else "miss"

    def ran(self, key: Key) -> None:
        """Note a compile in this process."""
        self.live.add(key)
        self.ran_elsewhere(key)

    def ran_elsewhere(self, key: Key) -> None:
        """Note a compile in another process, which stores what it did not find."""
        self.stored.add(key)
        self.doubtful.discard(key)

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
