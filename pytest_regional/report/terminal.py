"""The conformance table at the end of a run: suites down, backends across."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pytest_regional._text import plural
from pytest_regional.report import capabilities
from pytest_regional.report.document import BAD
from pytest_regional.report.facts import EXPLAINED, Facts

_ORDER = ("passed", "failed", "error", "crashed", "not finished", "unexpected pass", "known failure", "skipped")

#: Compiles, and causes of one counter, that are shown.
_SHOWN = 3


def write(reporter: Any, facts: Sequence[Facts], lost_workers: int) -> None:
    """Write the table with pytest's own terminal writer; nothing when no marked test ran."""
    if not facts:
        return
    reporter.section("regional conformance", sep="=")
    columns = list(dict.fromkeys(_column(fact) for fact in sorted(facts, key=_column)))
    suites = sorted({fact["suite"] for fact in facts})
    rows = [
        (suite, [_cell([f for f in facts if f["suite"] == suite and _column(f) == c]) for c in columns])
        for suite in suites
    ]
    total = ("all", [_cell([f for f in facts if _column(f) == c]) for c in columns])
    _write_rows(reporter, columns, [*rows, total])
    _write_totals(reporter, facts)
    _write_slowest(reporter, facts)
    _write_causes(reporter, facts)
    for line in capabilities.advice(facts):
        reporter.write_line(line)
    _write_crashed(reporter, facts)
    _write_repeated(reporter, facts)
    if lost_workers:
        reporter.write_line(f"{lost_workers} workers were lost: the totals are incomplete", red=True)


def _column(fact: Facts) -> str:
    return f"{fact['backend']} ({fact['device']})"


def _cell(facts: Sequence[Facts]) -> str:
    counts = Counter(fact["outcome"] for fact in facts)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in _ORDER if counts[outcome]) or "-"


def _write_rows(reporter: Any, columns: Sequence[str], rows: Sequence[tuple[str, list[str]]]) -> None:
    first = max(len("suite"), *(len(name) for name, _ in rows))
    widths = [max(len(title), *(len(cells[i]) for _, cells in rows)) for i, title in enumerate(columns)]
    _write_row(
        reporter, "suite".ljust(first), [title.ljust(width) for title, width in zip(columns, widths, strict=True)]
    )
    for name, cells in rows:
        _write_row(reporter, name.ljust(first), [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)])


def _write_row(reporter: Any, name: str, cells: Sequence[str]) -> None:
    reporter.write(name)
    for cell in cells:
        bad = any(word in cell for word in BAD)
        reporter.write("  ")
        reporter.write(cell, **({"red": True} if bad else {}))
    reporter.write_line("")


def _write_totals(reporter: Any, facts: Sequence[Facts]) -> None:
    totals: Counter[str] = Counter()
    for fact in facts:
        totals.update(fact["counters"])
    ratios = [ratio for fact in facts if (ratio := _margin(fact)) is not None]
    worst = f"; worst parity margin {max(ratios):.2g} of what is allowed" if ratios else ""
    # A backend that Inductor has no part in compiles graphs, and never a region.
    regions = totals["region_compiles"] or totals["region_cache_hits"]
    graphs = "" if regions else f"{plural(totals['graphs'], 'graph')}, "
    reporter.write_line(
        f"{graphs}{totals['region_compiles']} region compiles, {totals['region_cache_hits']} region loads, "
        f"{totals['cache_hits']} cache hits, {totals['cache_misses']} misses, {totals['cache_bypasses']} bypasses, "
        f"{totals['recompiles']} recompiles{worst}"
    )


def _margin(fact: Facts) -> float | None:
    """Return the test's worst margin, unless it passed with a comparison that failed: it asked for that one."""
    ratio = fact["worst_parity"]
    return None if ratio is not None and ratio > 1 and fact["outcome"] in ("passed", "skipped") else ratio


def _write_slowest(reporter: Any, facts: Sequence[Facts]) -> None:
    compiles = [(one["seconds"], one["what"], fact["test"]) for fact in facts for one in fact["slowest_compiles"]]
    if compiles:
        reporter.write_line("slowest compiles:")
    for seconds, what, test in sorted(compiles, reverse=True)[:_SHOWN]:
        reporter.write_line(f"  {seconds:6.2f} s  {what}, {test}")


def _write_crashed(reporter: Any, facts: Sequence[Facts]) -> None:
    for fact in facts:
        if fact["outcome"] == "crashed" and fact.get("phase", "call") != "call":
            reporter.write_line(f"crashed in its {fact['phase']}: {fact['test']}", red=True)


def _write_repeated(reporter: Any, facts: Sequence[Facts]) -> None:
    repeated = [fact["test"] for fact in facts if fact.get("runs", 1) > 1]
    if repeated:
        more = ", ..." if len(repeated) > _SHOWN else ""
        reporter.write_line(
            f"{plural(len(repeated), 'test')} ran more than once, and counts as it ended last: "
            f"{', '.join(repeated[:_SHOWN])}{more}"
        )


def _write_causes(reporter: Any, facts: Sequence[Facts]) -> None:
    for name in EXPLAINED:
        causes: Counter[str] = Counter()
        for fact in facts:
            causes.update(fact["causes"].get(name, {}))
        if causes:
            reporter.write_line(f"{name.replace('_', ' ')}, mostly because of:")
        for cause, count in causes.most_common(_SHOWN):
            reporter.write_line(f"  {count:4}  {cause}")
