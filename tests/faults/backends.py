"""Every mutant as a backend: ``--regional-backend=tests.faults.backends:region_keys_merged``."""

from __future__ import annotations

from pytest_regional import BackendSpec
from tests.faults.odd import ODD
from tests.faults.of_backends import FAULTS
from tests.faults.planting import spec_of


def __getattr__(name: str) -> BackendSpec:
    mutant = FAULTS.get(name) or ODD.get(name)
    if mutant is None:
        raise AttributeError(f"no mutant is called {name!r}; there are {', '.join((*FAULTS, *ODD))}")
    return spec_of(mutant)
