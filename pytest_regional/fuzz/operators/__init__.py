"""Operators that fuzzed programs are made of, one module a family."""

from __future__ import annotations

from pytest_regional.fuzz.operators import pointwise, reductions, views

#: In the table's order: what stands first is what programs shrink to.
MODULES = (pointwise, reductions, views)
