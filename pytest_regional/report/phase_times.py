"""How long the phases of a test's compiles took, as plain data of its facts.

Documented shape: ``phases`` (seconds by phase), ``regions`` (of the slowest graphs and regions, seconds by phase), and
``not_measured`` (phases that the installed torch does not tell from others). These are of the time that passes; ``cpu``
has ``phases`` and ``regions`` on the CPU clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_regional.harness.observe.phases import PhaseListener
    from pytest_regional.harness.regional import Regional

#: Of one test. A fuzz test compiles thousands of graphs, most of the same few names.
REGIONS = 12

_DIGITS = 5


def new_listeners(regional: Regional) -> dict[str, PhaseListener]:
    """Return what measures the compiles of a test, by the name of its clock, once these clocks run."""
    from pytest_regional.harness.compile_times.measuring import CLOCKS
    from pytest_regional.harness.observe.phases import PhaseListener

    listeners = {name: PhaseListener(regional._observer, now) for name, now in CLOCKS.items()}
    regional._observer.listeners.extend(listeners.values())
    return listeners


def facts_of(listeners: Mapping[str, PhaseListener]) -> dict[str, Any]:
    """Return what a report holds of the test that ``listeners`` measured."""
    from pytest_regional._torch.compile_phases import unmeasured

    wall = listeners["wall"].clock.seconds
    totals: dict[str, float] = defaultdict(float)
    for (_, what), seconds in wall.items():
        totals[what] += seconds
    slowest = sorted(filter(None, totals), key=lambda what: -totals[what])[:REGIONS]
    by_clock = {name: _by_phase(listener.clock.seconds, slowest) for name, listener in listeners.items()}
    return {**by_clock["wall"], "cpu": by_clock["cpu"], "not_measured": sorted(unmeasured())}


def _by_phase(measured: Mapping[tuple[str, str], float], regions: Sequence[str]) -> dict[str, Any]:
    phases: dict[str, float] = defaultdict(float)
    by_region: dict[str, dict[str, float]] = {what: defaultdict(float) for what in regions}
    for (phase, what), seconds in measured.items():
        phases[phase] += seconds
        if what in by_region:
            by_region[what][phase] += seconds
    return {"phases": _rounded(phases), "regions": {what: _rounded(found) for what, found in by_region.items()}}


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {phase: round(one, _DIGITS) for phase, one in sorted(seconds.items())}
