"""All rows: changes between two compiles of one program, by topic."""

from __future__ import annotations

from functools import cache

from . import code, inputs, memory, modules, operators, passes, settings
from .changes import Change

TOPICS = (code, inputs, memory, modules, operators, passes, settings)


@cache
def rows() -> dict[str, Change]:
    """Return all rows by id."""
    return {row.id: row for topic in TOPICS for row in topic.changes.rows}


def by_id(name: str) -> Change:
    """Return one row."""
    return rows()[name]
