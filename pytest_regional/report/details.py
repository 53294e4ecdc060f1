"""What a report shows of one test beyond its facts: its graphs, its code, when caches answered, how large errors were.

JUnit XML gets the counters as properties.

Collected only where a report is written. Documented shape, all plain data, in ``docs/reports.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from _pytest.junitxml import xml_key

from pytest_regional.harness.codegen.events import UnreadableCodeError, ops_shown
from pytest_regional.harness.observe.graph_drawing import GraphDrawer
from pytest_regional.report.document import counter_totals
from pytest_regional.report.facts import Facts

if TYPE_CHECKING:
    import pytest

    from pytest_regional.harness.counters import Event
    from pytest_regional.harness.observe.graph_drawing import DrawnGraph, GraphDrawer
    from pytest_regional.harness.parity.report import ParityReport
    from pytest_regional.harness.parity.tolerance import Errors
    from pytest_regional.harness.record import GeneratedSource
    from pytest_regional.harness.regional import Regional
    from pytest_regional.harness.training.report import TrainingReport

#: Of one test. A fuzz test compiles thousands of graphs.
GRAPHS, SOURCES, CHARACTERS, EVENTS, ERRORS = 12, 12, 60_000, 200, 60
#: Of a training: a model has hundreds of parameters, each compared in each step.
TRAINING_ERRORS = 5


def new_drawer() -> GraphDrawer:
    """Return what keeps the graphs of a test that a report shows."""
    return GraphDrawer(GRAPHS)


def details_of(regional: Regional, drawer: GraphDrawer) -> dict[str, Any]:
    """Return what a report shows of the test that ``regional`` was the harness of."""
    observer = regional.observer
    return {
        "graphs": [_graph(graph, not regional.supports("regions")) for graph in drawer.graphs],
        "code": [_code(source) for source in observer.sources[-SOURCES:]],
        "timeline": _timeline(observer.log.since()),
        "errors": _errors(regional._parity_reports),
        "left_out": _left_out(regional, drawer),
    }


def _left_out(regional: Regional, drawer: GraphDrawer) -> dict[str, int]:
    """Return how many of what are not shown."""
    observer = regional.observer
    kept = {
        "graphs": (drawer.count, GRAPHS),
        "code": (len(observer.sources), SOURCES),
        "timeline": (len(observer.log.since()), EVENTS),
        "errors": (
            sum(len(report.errors) for report in regional._parity_reports),
            len(_errors(regional._parity_reports)),
        ),
    }
    return {name: number - most for name, (number, most) in kept.items() if number > most}


def _graph(graph: DrawnGraph, whole: bool) -> dict[str, Any]:
    nodes = graph.nodes
    number = {node.name: index for index, node in enumerate(nodes)}
    return {
        "kind": graph.kind,
        "whole": whole,
        "size": len(graph.nodes),
        "nodes": [
            {
                "name": node.name,
                "op": node.op,
                "region": node.region,
                "partition": graph.partition_of(node),
                "inputs": [number[name] for name in node.inputs if name in number],
                "after": [number[name] for name in graph.after.get(node.name, ()) if name in number],
                "source": node.source,
            }
            for node in nodes
        ],
    }


def _code(source: GeneratedSource) -> dict[str, Any]:
    return {
        "graph": source.graph,
        "regions": list(source.regions),
        "loaded": source.loaded,
        "text": source.text[:CHARACTERS],
        "events": list(_code_events(source)),
    }


def _code_events(source: GeneratedSource) -> Iterator[dict[str, Any]]:
    try:
        events = source.events
    except UnreadableCodeError as error:
        # Code of another Inductor than the reader knows; the report says so in place of events.
        yield {"line": 1, "kind": "unreadable", "ops": str(error)}
        return
    for event in events:
        if event.kind != "alias":
            yield {"line": event.line, "kind": event.kind, "ops": ops_shown(event.ops)}


def _timeline(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [
        {"seconds": round(event.seconds, 4), "counter": event.counter, "cause": event.cause.strip()[:500]}
        for event in events[:EVENTS]
    ]


def _errors(reports: Iterable[ParityReport | TrainingReport]) -> list[dict[str, Any]]:
    found = [
        {
            "where": f"{report.label}: {where}" if report.label else where,
            "candidate": _finite(errors.candidate),
            "eager": None if errors.eager is None else _finite(errors.eager),
            "allowed": _finite(errors.allowed),
        }
        for report in reports
        for where, errors in _shown_errors(report)
    ]
    return found[:ERRORS]


def _shown_errors(report: ParityReport | TrainingReport) -> Iterable[tuple[str, Errors]]:
    """Return all errors of a call; of a training the worst of its first bad step, or of its worst one."""
    steps = getattr(report, "steps", None)
    if not steps:
        return report.errors.items()
    step = next((step for step in steps if step.mismatches), max(steps, key=lambda step: step.worst_ratio))
    return [(f"step {step.number}: {where}", errors) for where, errors in step.worst_errors()[:TRAINING_ERRORS]]


def _finite(number: float) -> float:
    """Return ``number`` for JSON, which has neither infinity nor NaN."""
    return number if abs(number) <= 1e300 else 1e300


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


def properties_of_run(facts: Sequence[Facts]) -> Iterator[tuple[str, object]]:
    """Yield names and values for a run: how tests ended on each backend and device, and the sums of all counters."""
    ended = Counter((fact["backend"], fact["device"], fact["outcome"]) for fact in facts)
    for (backend, device, outcome), count in sorted(ended.items()):
        yield f"regional.{backend}.{device}.{outcome.replace(' ', '_')}", count
    for name, count in sorted(counter_totals(facts).items()):
        yield f"regional.{name}", count


def add_to_run(config: pytest.Config, facts: Sequence[Facts]) -> None:
    """Add the properties of the run to the JUnit file, where one is written.

    pytest's ``record_testsuite_property`` is a fixture, and lost on workers of pytest-xdist; this is what it calls.
    """
    xml = config.stash.get(xml_key, None)
    if xml is not None:
        for name, value in properties_of_run(facts):
            xml.add_global_property(name, value)
