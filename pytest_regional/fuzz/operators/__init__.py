"""Operators that fuzzed programs are made of, one module a family."""

from __future__ import annotations

from pytest_regional.fuzz.operators import (
    calls,
    casts,
    convolution,
    copies,
    custom,
    factories,
    indexing,
    integer,
    matmul,
    norms,
    pointwise,
    random,
    reductions,
    sizes,
    sorting,
    statements,
    views,
    writes,
)

#: In the table's order: what stands first is what programs shrink to.
MODULES = (
    pointwise,
    reductions,
    views,
    copies,
    matmul,
    casts,
    factories,
    writes,
    norms,
    indexing,
    integer,
    convolution,
    sorting,
    random,
    custom,
    calls,
    statements,
    sizes,
)
