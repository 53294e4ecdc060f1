"""The rows of the table of ``make bench``, one module each.

A module says what it claims (``CLAIMS``) and measures it (``measure(rounds)``, as many rows in the same order). Nothing
here imports torch before it is measured: what is claimed can be read in any process.
"""

from __future__ import annotations

import importlib
from types import ModuleType

#: Modules of this package, in the order of the table.
NAMES = (
    "startup",
    "fixtures",
    "conformance",
    "blocks",
    "partitioning",
    "calls",
    "memory",
    "fuzz",
    "reading",
)

#: Rows that keep to one core, and the row of one core and ten minutes beside which they run, one after another.
BESIDE = dict.fromkeys(("fixtures", "partitioning", "memory", "fuzz", "reading"), "blocks")


def module(name: str) -> ModuleType:
    """Return the module of that name."""
    return importlib.import_module(f"{__name__}.{name}")
