"""Every mutant as a backend: ``--regional-backend=bench.mutants.backends:region_keys_merged``."""

from __future__ import annotations

from bench.mutants.faults import FAULTS
from bench.mutants.odd import ODD
from bench.mutants.planting import spec_of
from pytest_regional.backends.spec import BackendSpec


def __getattr__(name: str) -> BackendSpec:
    mutant = FAULTS.get(name) or ODD.get(name)
    if mutant is None:
        raise AttributeError(f"no mutant is called {name!r}; there are {', '.join((*FAULTS, *ODD))}")
    return spec_of(mutant)
