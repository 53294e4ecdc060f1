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
MODULES = (
    pointwise,
    reductions,
    views,
    factories,
    matmul,
    integer,
    factories,
    writes,
    reductions,
    indexing,
    integer,
    matmul,
    reductions,
    factories,
    calls,
    calls,
    operator,
    views,
)
