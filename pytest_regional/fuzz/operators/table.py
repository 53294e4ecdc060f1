"""The operator table: every operator that programs are made of, by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from pytest_regional.fuzz.operators.operator import Operator


class UnknownOperatorError(ValueError):
    """A name that is not in the operator table."""


@functools.cache
def operators() -> Mapping[str, Operator]:
    """Return the table, the simplest operators first."""
    from pytest_regional.fuzz.operators import MODULES

    found: dict[str, Operator] = {}
    for module in MODULES:
        for operator in module.OPERATORS:
            if operator.name in found:
                raise ValueError(f"two operators are called {operator.name!r}")
            found[operator.name] = operator
    return MappingProxyType(found)


def operator_named(name: str) -> Operator:
    """Return the operator called ``name``.

    Raises:
        UnknownOperatorError: none is; with the nearest names.
    """
    import difflib

    table = operators()
    if name not in table:
        close = difflib.get_close_matches(name, table, n=3)
        nearest = f"; nearest: {', '.join(close)}" if close else ""
        raise UnknownOperatorError(f"no operator is called {name!r}{nearest}")
    return table[name]


def families() -> tuple[str, ...]:
    """Return the families of operators, in the table's order."""
    return tuple(dict.fromkeys(operator.family for operator in operators().values()))
