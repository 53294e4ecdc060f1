"""Measuring several things in turns, so that all of them share what else the machine does."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def in_turns(rounds: int, ways: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Call each of ``ways`` once a round; return what each gave, by its name."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    return found
