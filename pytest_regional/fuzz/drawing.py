"""An endless stream of drawn programs, for campaigns. Needs the ``hypothesis`` package."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeVar

import hypothesis
from hypothesis import strategies as st

T = TypeVar("T")

#: Programs that are drawn at a time; Hypothesis begins each time with the simplest.
BATCH = 64


def drawn(strategy: st.SearchStrategy[T], seed: int) -> Iterator[T]:
    """Yield values of ``strategy`` without end; the same for the same seed, equal ones of a batch once."""
    for number in itertools.count():
        yield from _batch(strategy, (seed * 1_000_003 + number) % 2**64)


def _batch(strategy: st.SearchStrategy[T], seed: int) -> list[T]:
    values: list[T] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=BATCH,
        phases=(hypothesis.Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def collect(value: T) -> None:
        values.append(value)

    collect()
    return list(dict.fromkeys(values))
