"""The operator table: every operator that programs are made of, by name."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from types import MappingProxyType

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._torch import torch_version
from pytest_regional.fuzz.operators import (
    aliasing,
    calls,
    factories,
    indexing,
    matmul,
    pointwise,
    reductions,
    transforms,
    views,
)
from pytest_regional.fuzz.operators.aten import derived_operators
from pytest_regional.fuzz.operators.operator import Operator

_MODULES = (
    pointwise,
    reductions,
    views,
    factories,
    matmul,
    indexing,
    calls,
    aliasing,
    transforms,
)

#: Families in the table's order: programs shrink to what stands first. Families of one line stand as in their module.
_ORDER: tuple[tuple[str, ...], ...] = (
    ("pointwise", "comparison"),
    ("reduction",),
    ("view",),
    ("copy",),
    ("matmul",),
    ("cast",),
    ("factory",),
    ("write", "out"),
    ("norm",),
    ("index", "scatter"),
    ("integer",),
    ("convolution",),
    ("sort",),
    ("random",),
    ("custom",),
    ("call", "checkpoint", "nested", "cond", "loop"),
    ("transform",),
    ("statement",),
    ("data_dependent",),
)
_PLACES = {family: place for place, together in enumerate(_ORDER) for family in together}


def _place(operator: Operator) -> int:
    return _PLACES[operator.family]


@functools.cache
def operators() -> Mapping[str, Operator]:
    """Return the operators that this torch has, the simplest first."""
    written = (one for module in _MODULES for one in module.OPERATORS)
    everything = sorted((*written, *derived_operators()), key=_place)
    names = [operator.name for operator in everything]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two operators are called {min(twice)!r}")
    version = torch_version()
    return MappingProxyType({operator.name: operator for operator in everything if operator.since <= version})


def operator_named(name: str) -> Operator:
    """Return the operator called ``name``.

    Raises:
        RegionalValueError: none is; with the nearest names.
    """
    table = operators()
    if name not in table:
        close = difflib.get_close_matches(name, table, n=3)
        nearest = f"; nearest: {', '.join(close)}" if close else ""
        raise RegionalValueError(f"no operator of this torch is called {name!r}{nearest}")
    return table[name]


@functools.cache
def families() -> tuple[str, ...]:
    """Return the families of operators, in the table's order."""
    return tuple(dict.fromkeys(operator.family for operator in operators().values()))
