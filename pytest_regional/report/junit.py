"""Properties in JUnit XML: counters of a test, and totals of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from _pytest.junitxml import xml_key

from pytest_regional.report.document import counter_totals
from pytest_regional.report.facts import Facts

if TYPE_CHECKING:
    import pytest

#: Counters that a test's properties hold.
_OF_TESTS = ("region_compiles", "cache_hits", "cache_misses", "cache_bypasses", "recompiles", "fallbacks")


def properties_of_test(counters: dict[str, int], worst_parity: float | None) -> Iterator[tuple[str, object]]:
    """Yield names and values for one test; the backend stands there already."""
    for name in _OF_TESTS:
        yield f"regional_{name}", counters.get(name, 0)
    if worst_parity is not None:
        yield "regional_worst_parity", f"{worst_parity:.3g}"


def without_properties_of_test(properties: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
    """Return ``properties`` without those that :func:`properties_of_test` yields: they are of an earlier run."""
    ours = {f"regional_{name}" for name in (*_OF_TESTS, "worst_parity")}
    return [(name, value) for name, value in properties if name not in ours]


def add_to_run(config: pytest.Config, facts: Sequence[Facts]) -> None:
    """Add to the JUnit file, where one is written, how tests ended on each backend and device, and all counters' sums.

    pytest's ``record_testsuite_property`` is a fixture, and lost on workers of pytest-xdist; this is what it calls.
    """
    xml = config.stash.get(xml_key, None)
    if xml is None:
        return
    ended = Counter((fact["backend"], fact["device"], fact["outcome"]) for fact in facts)
    for (backend, device, outcome), count in sorted(ended.items()):
        xml.add_global_property(f"regional.{backend}.{device}.{outcome.replace(' ', '_')}", count)
    for name, count in sorted(counter_totals(facts).items()):
        xml.add_global_property(f"regional.{name}", count)
