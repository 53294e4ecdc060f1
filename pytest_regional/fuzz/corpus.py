"""Programs that were the first to reach something, kept to be mutated: in memory, and if wanted in a folder.

For each coverage key the corpus knows how often it was reached, and the smallest kept program that reaches it. A
program that is the smallest one for no key is dropped: others cover what it does.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.model.program import Program

#: How many programs are kept unless told otherwise.
MOST_PROGRAMS = 400


class CorpusFolder:
    """A folder of kept programs, one JSON file each, as findings hold them.

    Args:
        path: where; made when the first program is saved.
        unreadable: called with the error of each file that holds no program, which is skipped.
        most: how many files one share has; older ones are deleted.
    """

    def __init__(
        self,
        path: Path,
        unreadable: Callable[[files.ProgramFileError], Any] | None = None,
        most: int = MOST_PROGRAMS,
    ) -> None:
        self.path, self._unreadable, self._most = path, unreadable, most

    def programs(self, part: int = 0, parts: int = 1) -> Iterator[Program]:
        """Yield the programs of one of ``parts`` shares, the newest first."""
        share = [path for path in sorted(self.path.glob("*.json")) if zlib.crc32(path.name.encode()) % parts == part]
        newest = sorted(share, key=_written, reverse=True)
        for path in filter(Path.is_file, newest[self._most :]):
            path.unlink(missing_ok=True)
        for path in newest[: self._most]:
            try:
                yield files.load(path)
            except files.ProgramFileError as error:
                self._skip(error)
            except FileNotFoundError:
                continue  # another shard, which made the same program, dropped it
            except OSError as error:
                self._skip(files.ProgramFileError(f"{path} cannot be read: {error.strerror}"))

    def _skip(self, error: files.ProgramFileError) -> None:
        if self._unreadable is not None:
            self._unreadable(error)

    def save(self, program: Program, keys: Collection[str] = ()) -> None:
        """Write ``program``; which ``keys`` it reaches is found again when it is checked."""
        self.path.mkdir(parents=True, exist_ok=True)
        files.save(program, self._file_of(program))

    def drop(self, program: Program) -> None:
        """Delete the file of ``program``, if it is there."""
        self._file_of(program).unlink(missing_ok=True)

    def _file_of(self, program: Program) -> Path:
        return self.path / f"{program.identity}.json"


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


@dataclass(eq=False)
class _Kept:
    """A kept program, and the keys for which it is the smallest one."""

    program: Program
    size: int
    keys: set[str] = field(default_factory=set)


class KeptPrograms(Protocol):
    """Where kept programs are written; a :class:`CorpusFolder` is one."""

    def programs(self, part: int = 0, parts: int = 1) -> Iterator[Program]:
        """Yield the programs of one of ``parts`` shares that are to be checked again."""

    def save(self, program: Program, keys: Collection[str]) -> None:
        """Keep a program that reaches ``keys``."""

    def drop(self, program: Program) -> None:
        """Forget a program: others reach what it does."""


class Corpus:
    """Kept programs.

    Args:
        most: how many there may be; beyond, those go whose rarest key is the most common.
        folder: where they are written as well.

    Attributes:
        reached: by key, how many checked programs reached it, kept or not.
    """

    def __init__(self, most: int = MOST_PROGRAMS, folder: KeptPrograms | None = None) -> None:
        self.reached: Counter[str] = Counter()
        self._most, self._folder = most, folder
        self._kept: dict[str, _Kept] = {}
        self._smallest: dict[str, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Program]:
        return iter([one.program for one in self._kept.values()])

    def count(self, keys: Collection[str]) -> list[str]:
        """Count the keys that one checked program reached; return those that none before it did."""
        new = [key for key in keys if key not in self.reached]
        self.reached.update(keys)
        return new

    def adopt(self, program: Program, keys: Collection[str]) -> None:
        """Take over a program that another process keeps: what it reaches is new no more."""
        folder, self._folder = self._folder, None
        try:
            self.count(keys)
            self.keep(program, keys)
        finally:
            self._folder = folder

    def keep(self, program: Program, keys: Collection[str]) -> bool:
        """Keep ``program`` if it is the smallest one for some of ``keys``, which were counted; return whether it is.

        Programs that are then the smallest one for no key are dropped.
        """
        identity = program.identity
        made = _Kept(program, len(tuple(program.all_steps())))
        smaller = [key for key in keys if key not in self._smallest or made.size < self._smallest[key].size]
        if not smaller or identity in self._kept:
            return False
        self._kept[identity] = made
        if self._folder is not None:
            self._folder.save(program, keys)
        for key in smaller:
            self._give(key, made)
        while len(self) > self._most:
            self._drop(min(self._kept.values(), key=self._rarity))
        return identity in self._kept

    def _give(self, key: str, one: _Kept) -> None:
        before = self._smallest.get(key)
        self._smallest[key] = one
        one.keys.add(key)
        if before is not None:
            before.keys.discard(key)
            if not before.keys:
                self._drop(before)

    def _drop(self, one: _Kept) -> None:
        """Forget a program, and that it reaches its keys: they stay counted, so that they are not new once more."""
        del self._kept[one.program.identity]
        for key in one.keys:
            del self._smallest[key]
        if self._folder is not None:
            self._folder.drop(one.program)

    def _rarity(self, one: _Kept) -> float:
        return 1 / min(max(self.reached[key], 1) for key in one.keys)

    def pick(self, chance: random.Random) -> Program:
        """Return a kept program, the more often the rarer what it alone is kept for, and the fewer steps it has.

        A long program takes long to check, and so do its mutants.


        Raises:
            IndexError: none is kept.
        """
        kept = list(self._kept.values())
        return chance.choices(kept, [self._rarity(one) / max(one.size, 1) for one in kept])[0].program


__all__ = ["MOST_PROGRAMS", "Corpus", "CorpusFolder", "KeptPrograms"]
