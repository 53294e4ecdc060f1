"""How long the phases of a test's compiles took, as plain data of its facts.

Documented shape: ``phases`` (seconds by phase), ``regions`` (of the slowest graphs and regions, seconds by phase), and
``not_measured`` (phases that the installed torch does not tell from others).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_regional.harness.observe.phases import PhaseListener
    from pytest_regional.harness.regional import Regional

#: Of one test. A fuzz test compiles thousands of graphs, most of the same few names.
REGIONS = 12

_DIGITS = 5


def new_listener(regional: Regional) -> PhaseListener:
    """Return what measures the compiles of a test, once its clock runs."""
    from pytest_regional.harness.observe.phases import PhaseListener

    listener = PhaseListener(regional._observer)
    regional._observer.listeners.append(listener)
    return listener


def facts_of(listener: PhaseListener) -> dict[str, Any]:
    """Return what a report holds of the test that ``listener`` measured."""
    from pytest_regional._torch.compile_phases import unmeasured

    phases: dict[str, float] = defaultdict(float)
    regions: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (phase, what), seconds in listener.clock.seconds.items():
        phases[phase] += seconds
        if what:
            regions[what][phase] += seconds
    slowest = sorted(regions, key=lambda what: -sum(regions[what].values()))[:REGIONS]
    return {
        "phases": _rounded(phases),
        "regions": {what: _rounded(regions[what]) for what in slowest},
        "not_measured": sorted(unmeasured()),
    }


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {phase: round(one, _DIGITS) for phase, one in sorted(seconds.items())}
