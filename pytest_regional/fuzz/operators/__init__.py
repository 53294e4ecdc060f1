"""Operators that fuzzed programs are made of, one module a family."""

from __future__ import annotations

from pytest_regional.fuzz.operators import (
    calls,
    factories,
    indexing,
    integer,
    matmul,
    operator,
    pointwise,
    reductions,
    views,
    writes,
)

#: In the table's order: what stands first is what programs shrink to.
TABLES = (
    pointwise.OPERATORS,
    reductions.OPERATORS,
    views.OPERATORS,
    factories.COPIES,
    matmul.OPERATORS,
    integer.CASTS,
    factories.OPERATORS,
    writes.OPERATORS,
    reductions.NORMS,
    indexing.OPERATORS,
    integer.OPERATORS,
    matmul.CONVOLUTIONS,
    reductions.SORTS,
    factories.RANDOM,
    calls.CUSTOM,
    calls.OPERATORS,
    operator.OPERATORS,
    views.SIZES,
)
