"""What a report shows of one test beyond its facts: its graphs, its code, when caches answered, how large errors were.

Collected only where a report is written. Documented shape, all plain data, in ``docs/reports.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pytest_regional.harness.codegen.events import UnreadableCodeError, ops_shown
from pytest_regional.harness.observe.listeners import GraphDrawer

if TYPE_CHECKING:
    from pytest_regional.harness.observe.listeners import DrawnGraph, GraphDrawer
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
    events = observer.log.since()
    errors = _errors(regional._parity_reports)
    counts = {
        "graphs": drawer.count - GRAPHS,
        "code": len(observer.sources) - SOURCES,
        "timeline": len(events) - EVENTS,
        "errors": sum(len(report.errors) for report in regional._parity_reports) - len(errors),
    }
    return {
        "graphs": [_graph(graph, not regional.supports("regions")) for graph in drawer.graphs],
        "code": [_code(source) for source in observer.sources[-SOURCES:]],
        "timeline": [
            {"seconds": round(event.seconds, 4), "counter": event.counter, "cause": event.cause.strip()[:500]}
            for event in events[:EVENTS]
        ],
        "errors": errors,
        "left_out": {name: count for name, count in counts.items() if count > 0},
    }


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
    try:
        events = [
            {"line": event.line, "kind": event.kind, "ops": ops_shown(event.ops)}
            for event in source.events
            if event.kind != "alias"
        ]
    except UnreadableCodeError as error:
        # Code of another Inductor than the reader knows; the report says so in place of events.
        events = [{"line": 1, "kind": "unreadable", "ops": str(error)}]
    return {
        "graph": source.graph,
        "regions": list(source.regions),
        "loaded": source.loaded,
        "text": source.text[:CHARACTERS],
        "events": events,
    }


def _errors(reports: Iterable[ParityReport | TrainingReport]) -> list[dict[str, Any]]:
    """Return all errors of calls; of a training the worst of its first bad step, or of its worst one."""
    found = []
    for report in reports:
        shown: Iterable[tuple[str, Errors]] = report.errors.items()
        steps = getattr(report, "steps", None)
        if steps:
            step = next((step for step in steps if step.mismatches), max(steps, key=lambda step: step.worst_ratio))
            shown = [(f"step {step.number}: {where}", one) for where, one in step.worst_errors()[:TRAINING_ERRORS]]
        found += [
            {
                "where": f"{report.label}: {where}" if report.label else where,
                "candidate": _finite(errors.candidate),
                "eager": None if errors.eager is None else _finite(errors.eager),
                "allowed": _finite(errors.allowed),
            }
            for where, errors in shown
        ]
    return found[:ERRORS]


def _finite(number: float) -> float:
    """Return ``number`` for JSON, which has neither infinity nor NaN."""
    return number if abs(number) <= 1e300 else 1e300
