"""Kept programs of a store: those that are needed for what all of them reach, and the others deleted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pytest_regional.fuzz.findings.strict_json import Field
from pytest_regional.fuzz.store import Store
from pytest_regional.fuzz.workers.entries import read_entry


@dataclass(frozen=True)
class KeptProgram:
    """A kept program: how many steps it has, and the coverage keys that it reaches, with its mode in front."""

    size: int
    keys: frozenset[str]


def needed(programs: Mapping[str, KeptProgram]) -> set[str]:
    """Return names of programs that reach together what all ``programs`` reach.

    The smallest such set is hard to find (set cover); this is the greedy one: always the program that reaches most of
    what is missing, of equal ones the one with fewer steps (Chvatal, 1979: at most ``ln n`` times as many).
    """
    missing = frozenset().union(*(one.keys for one in programs.values()))
    chosen: set[str] = set()
    while missing:
        best = max(programs, key=lambda name: (len(programs[name].keys & missing), -programs[name].size, name))
        chosen.add(best)
        missing -= programs[best].keys
    return chosen


@dataclass(frozen=True)
class Pruned:
    """How many programs there were, how many are left, and how many coverage keys they reach."""

    before: int
    after: int
    keys: int


def prune(store: Store) -> Pruned:
    """Delete the kept programs of a store that are not needed; other processes may go on meanwhile."""
    entries = store.entries("corpus")
    programs = {name: one for name, entry in entries.items() if (one := read_entry(_kept, entry)) is not None}
    wanted = needed(programs)
    for name, entry in entries.items():
        if name not in wanted:
            store.write("corpus", name, None, version=entry.version)
    keys: Collection[str] = frozenset().union(*(one.keys for one in programs.values()))
    return Pruned(len(entries), len(wanted), len(keys))


def _kept(document: Field) -> KeptProgram:
    at = document.fields(("mode", "program", "size", "keys"))
    mode = at["mode"].line()
    keys = frozenset(f"{mode} {one.line(1000)}" for one in at["keys"].items(100_000))
    return KeptProgram(at["size"].integer(0, 10_000), keys)


__all__ = ["KeptProgram", "Pruned", "needed", "prune"]
