"""Views, slices and copies that change the layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_regional.fuzz.facts import Facts
from pytest_regional.fuzz.operators.operator import Operator, Picks, Value, also, anything, ranked


def _moved(a: Value, **parameters: Any) -> Facts:
    return a.facts.moved()


def _two_dimensions(values: Sequence[Value], picks: Picks) -> dict[str, Any]:
    rank = values[0].rank
    first = picks.below(rank)
    return {"first": first, "second": (first + 1 + picks.below(rank - 1)) % rank}


def _slice(values: Sequence[Value], picks: Picks) -> dict[str, Any]:
    dim = picks.below(values[0].rank)
    size = values[0].shape[dim]
    start = picks.below(size)
    return {"dim": dim, "start": start, "end": start + 1 + picks.below(size - start)}


OPERATORS = (
    Operator(
        "transpose",
        "view",
        "{a}.transpose({first}, {second})",
        (also(anything, ranked(2)),),
        _moved,
        _two_dimensions,
    ),
    Operator("flatten", "view", "{a}.flatten()", (anything,), _moved),
    Operator("clone", "view", "{a}.clone()", (anything,), _moved),
    Operator(
        "narrow",
        "view",
        "{a}.narrow({dim}, {start}, {end} - {start})",
        (also(anything, ranked(1)),),
        _moved,
        _slice,
    ),
)
