"""What a test compiled, in words: each graph with its regions, for tests that failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_regional._text import plural

if TYPE_CHECKING:
    from pytest_regional.harness.record import GraphRecord, RegionRecord

#: Graphs and operators that are named; of a fuzz test there are thousands.
_GRAPHS, _OPERATORS = 8, 12


def plan_of(graphs: Sequence[GraphRecord]) -> str:
    """Return one paragraph for each of the last graphs; empty where there are none."""
    return "\n".join(_lines(graphs))


def _lines(graphs: Sequence[GraphRecord]) -> Iterator[str]:
    if len(graphs) > _GRAPHS:
        yield f"({plural(len(graphs) - _GRAPHS, 'earlier graph')} left out)"
    for graph in graphs[-_GRAPHS:]:
        yield f"{graph.kind} graph of {plural(len(graph.ops), 'op')}{'' if graph.regions else ', no regions'}"
        yield from map(_line, graph.regions)


def _line(region: RegionRecord) -> str:
    ops = ", ".join(region.ops[:_OPERATORS]) + (", ..." if len(region.ops) > _OPERATORS else "")
    configs = f" with {region.configs}" if region.configs else ""
    partitions, count = plural(region.partitions, "partition"), plural(len(region.ops), "op")
    return f"  region {region.name}{configs}: {partitions} of {count} ({ops})"


__all__ = ["plan_of"]
