"""Hypothesis strategies for annotated programs. Needs the ``hypothesis`` package."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st

from pytest_regional.fuzz.program import Program
from pytest_regional.fuzz.rows import ArgumentRow, StepRow, program_of

_SMALL = st.integers(0, 255)


def programs(
    *,
    max_steps: int = 12,
    families: Collection[str] | None = None,
    training: bool | None = None,
    regions: bool = True,
) -> st.SearchStrategy[Program]:
    """Return a strategy of annotated programs.

    Args:
        max_steps: no program has more steps.
    """
    arguments = st.lists(st.builds(ArgumentRow, _SMALL, _SMALL, _SMALL, _SMALL, _SMALL), min_size=1, max_size=3)
    references = st.tuples(_SMALL, _SMALL, _SMALL, _SMALL)
    rows = st.builds(StepRow, _SMALL, references, st.tuples(_SMALL, _SMALL, _SMALL), _SMALL, _SMALL)
    return st.builds(program_of, arguments, st.lists(rows, min_size=1, max_size=max_steps))


__all__ = ["programs"]
