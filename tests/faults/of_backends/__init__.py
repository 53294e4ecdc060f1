"""The faults, one a backend: each says what is wrong, and which oracles and suites are meant to notice."""

from __future__ import annotations

from tests.faults.of_backends import arithmetic, caching, configs, graphs, order, passes, plans, sharing, values
from tests.faults.planting import Mutant

FAULTS: dict[str, Mutant] = {
    fault.name: fault
    for theme in (plans, values, arithmetic, graphs, sharing, configs, order, caching, passes)
    for fault in theme.FAULTS
}
