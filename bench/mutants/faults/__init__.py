"""The faults, one a backend: each says what is wrong, and which oracles and suites are meant to notice."""

from __future__ import annotations

from bench.mutants.faults import arithmetic, caching, configs, graphs, order, passes, plans, sharing, values
from bench.mutants.planting import Mutant

FAULTS: dict[str, Mutant] = {
    fault.name: fault
    for theme in (plans, values, arithmetic, graphs, sharing, configs, order, caching, passes)
    for fault in theme.FAULTS
}
