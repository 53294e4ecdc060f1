"""The conformance table, suites down and backends across, and the totals, as texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_regional._text import plural
from pytest_regional.report.document import SHOWN, column_of, counter_totals, worst_margin
from pytest_regional.report.facts import Facts

Rows = list[tuple[str, list[str]]]


def rows_of(facts: Sequence[Facts]) -> tuple[list[str], Rows]:
    """Return the headings of the columns, and of each suite, and of all, its name and cells."""
    columns = sorted({column_of(fact) for fact in facts})
    suites = sorted({fact["suite"] for fact in facts})
    rows = [
        (suite, [_cell([f for f in facts if f["suite"] == suite and column_of(f) == c]) for c in columns])
        for suite in suites
    ]
    return columns, [*rows, ("all", [_cell([f for f in facts if column_of(f) == c]) for c in columns])]


def _cell(facts: Sequence[Facts]) -> str:
    counts = Counter(fact["outcome"] for fact in facts)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in SHOWN if counts[outcome]) or "-"


def totals_of(facts: Sequence[Facts]) -> str:
    """Return the counters of all tests in a line."""
    totals, margin = counter_totals(facts), worst_margin(facts)
    worst = "" if margin is None else f"; worst parity margin {margin:.2g} of what is allowed"
    # A backend that Inductor has no part in compiles graphs, and never a region.
    regions = totals["region_compiles"] or totals["region_cache_hits"]
    graphs = "" if regions else f"{plural(totals['graphs'], 'graph')}, "
    return (
        f"{graphs}{totals['region_compiles']} region compiles, {totals['region_cache_hits']} region loads, "
        f"{totals['cache_hits']} cache hits, {totals['cache_misses']} misses, {totals['cache_bypasses']} bypasses, "
        f"{totals['recompiles']} recompiles{worst}"
    )


def slowest_of(facts: Sequence[Facts], most: int) -> list[tuple[float, str, str]]:
    """Return seconds, name and test of the slowest code generations."""
    compiles = [(one["seconds"], one["what"], fact["test"]) for fact in facts for one in fact["slowest_compiles"]]
    return sorted(compiles, reverse=True)[:most]
