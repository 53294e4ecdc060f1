"""What a test that passed is refused for: it compiled nothing, or something ran eager in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .counters import describe

if TYPE_CHECKING:
    from .regional import Regional


class VacuousTestError(AssertionError):
    """A test that compiled nothing, so that whatever it asserted was asserted of eager code."""


class FallbackError(AssertionError):
    """Something that was asked to compile ran eager instead."""


def check_fallbacks(regional: Regional) -> None:
    """Raise :class:`FallbackError` when anything ran eager that was asked to compile."""
    __tracebackhide__ = True
    events = [event for event in regional.observer.log.since() if event.counter == "fallbacks"]
    if events:
        causes = "\n".join(f"  {event.cause}" for event in events)
        raise FallbackError(f"what should have been compiled ran eager:\n{causes}")


def check_not_vacuous(regional: Regional) -> None:
    """Raise :class:`VacuousTestError` when no region was compiled, loaded, or shared with another test."""
    __tracebackhide__ = True
    if not regional.spec.capabilities.get("compiles_regions"):
        return
    counters = regional.counters
    loaded = counters.region_cache_hits or counters.cache_hits
    if counters.region_compiles or loaded or regional.observer.called_compiled_region:
        return
    if regional.passes_on_graphs and not regional.observer.graphs:
        return
    raise VacuousTestError(
        f"no region was compiled and none was loaded with backend {regional.backend!r}: the test proves nothing about "
        f"compiled code. Were the annotations lost, or was nothing called? If that is intended, mark the test "
        f"regional_compile(expects_regions=False).\n" + "\n".join(describe(regional.observer.log.since()))
    )
