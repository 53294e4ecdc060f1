"""The report as one HTML file that needs no network: written from templates, drawn in the browser."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_regional._base.files import dumps
from pytest_regional.report.ci import kept_code
from pytest_regional.report.document import BAD, OUTCOMES, SHOWN, RunReport, counter_totals, matrix_of, worst_margin
from pytest_regional.report.facts import Facts


def positions(nodes: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return column and row of each node, which has its neighbours' numbers in ``inputs`` and ``after``.

    A node stands one row below the lowest of those that it needs or waits for. In a row nodes are ordered by the mean
    column of those above them (the barycenter heuristic of Sugiyama, Tagawa and Toda, 1981), which keeps edges from
    crossing; rows are centred. What a node waits for stands above it where it comes before it in the graph; else the
    edge goes upwards, as regions that need each other may ask for an order that values contradict.
    """
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(nodes)))
    graph.add_edges_from(
        (one, index) for index, node in enumerate(nodes) for one in (*node["inputs"], *node["after"]) if one < index
    )
    columns: dict[int, float] = {}
    rows: dict[int, int] = {}
    for row, layer in enumerate(networkx.topological_generations(graph)):
        above = {node: [columns[one] for one in graph.predecessors(node)] for node in layer}
        means = {node: sum(around) / len(around) if around else 0.0 for node, around in above.items()}
        for place, node in enumerate(sorted(layer, key=lambda node: (means[node], node))):
            columns[node] = place - (len(layer) - 1) / 2
            rows[node] = row
    return [(columns[index], float(rows[index])) for index in range(len(nodes))]


#: A graph of more nodes is drawn as boxes that open.
MOST_NODES = 60

_Kind = tuple[str, str | None, int | None]


@dataclass
class _Box:
    kind: _Kind
    nodes: list[int] = field(default_factory=list)


def boxes_of(nodes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the boxes of a graph in execution order, each as plain data.

    Args:
        nodes: In program order, each with ``op``, ``region``, ``partition``, ``inputs`` and ``after`` (numbers).

    Returns:
        For each box ``kind`` (``inputs``, ``compiled``, ``eager`` or ``output``), ``region``, ``partition``, its
        ``nodes``, the boxes that it takes values from (``inputs``) and waits for (``after``), its ``place`` in the
        drawing of boxes, and ``shown``: the nodes to draw when it opens, neighbours included, with a place for each.
    """
    kinds = [_kind_of(node) for node in nodes]
    boxes = list(_stretches(kinds, nodes))
    box_of = {index: number for number, box in enumerate(boxes) for index in box.nodes}
    linked = []
    for number, box in enumerate(boxes):
        kind, region, partition = box.kind
        edges = {
            edge: sorted({box_of[one] for index in box.nodes for one in nodes[index][edge]} - {number})
            for edge in ("inputs", "after")
        }
        linked.append({"kind": kind, "region": region, "partition": partition, "nodes": sorted(box.nodes), **edges})
    users: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        for one in node["inputs"]:
            users[one].append(index)
    return [
        {**one, "place": place, "shown": _shown(box, nodes, users)}
        for one, place, box in zip(linked, positions(linked), boxes, strict=True)
    ]


def _kind_of(node: Mapping[str, Any]) -> _Kind:
    if node["op"] in ("input", "output"):
        return ("inputs" if node["op"] == "input" else "output", None, None)
    if node["region"] is None and node["partition"] is None:
        return ("eager", None, None)
    return ("compiled", node["region"], node["partition"])


def _stretches(kinds: Sequence[_Kind], nodes: Sequence[Mapping[str, Any]]) -> Iterator[_Box]:
    """Schedule the nodes; go on with the present kind as long as one of it can run, so that boxes are few.

    A partition is one unit, as it runs as one. A unit that can never run (an order that values contradict) comes last.
    """
    units: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for index, kind in enumerate(kinds):
        units[kind if kind[2] is not None else (index,)].append(index)
    unit_of = {index: unit for unit, members in units.items() for index in members}
    before = {
        unit: {unit_of[one] for index in members for one in _needs(nodes[index])} for unit, members in units.items()
    }
    after: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    blocked = {}
    for unit, sources in before.items():
        blocked[unit] = len(sources - {unit})
        for source in sources - {unit}:
            after[source].append(unit)
    ready: dict[_Kind, list[tuple[int, tuple[Any, ...]]]] = defaultdict(list)

    def make_ready(unit: tuple[Any, ...]) -> None:
        heapq.heappush(ready[kinds[units[unit][0]]], (units[unit][0], unit))

    for unit, count in blocked.items():
        if not count:
            make_ready(unit)
    left = dict.fromkeys(units)
    while left:
        if not any(ready.values()):
            make_ready(next(iter(left)))
        kind = min((queue[0][0], kind) for kind, queue in ready.items() if queue)[1]
        box = _Box(kind)
        while ready[kind]:
            _, unit = heapq.heappop(ready[kind])
            if unit not in left:
                continue
            del left[unit]
            box.nodes += units[unit]
            for other in after[unit]:
                blocked[other] -= 1
                if not blocked[other]:
                    make_ready(other)
        if box.nodes:
            yield box


def _needs(node: Mapping[str, Any]) -> Iterable[int]:
    return (*node["inputs"], *node["after"])


def _shown(box: _Box, nodes: Sequence[Mapping[str, Any]], users: Mapping[int, list[int]]) -> dict[str, Any]:
    neighbours = {one for index in box.nodes for one in (*_needs(nodes[index]), *users.get(index, ()))}
    shown = sorted(neighbours.union(box.nodes))
    number = {index: place for place, index in enumerate(shown)}
    inside = set(box.nodes)
    drawn = [
        {
            edge: [number[one] for one in nodes[index][edge] if one in number and (index in inside or one in inside)]
            for edge in ("inputs", "after")
        }
        for index in shown
    ]
    return {"nodes": shown, "edges": drawn, "places": positions(drawn)}


_FOLDER = Path(__file__).parent

#: Characters of what is drawn, and of failures, that a page holds: a browser opens a few hundred megabytes late or not
#: at all, and a telephone less. The worst endings come first.
MOST_DATA, MOST_FAILURES = 32_000_000, 8_000_000
_NOT_HERE = "Not in this page, which would be too large. It is in the JSON report: --regional-report=FILE.json"

#: Characters that have no place in a page: a test may print them, or have them in its failure.
_ESCAPES = {number: f"\\x{number:02x}" for number in (*range(32), 127) if chr(number) not in "\t\n\r"}


def html_of(report: RunReport) -> str:
    """Return the page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    tests = sorted(report.tests, key=lambda fact: (OUTCOMES.index(fact["outcome"]), fact["test"]))
    data, bare = _embedded(tests)
    columns, rows = matrix_of(tests)
    left, failures = MOST_FAILURES, []
    for fact in tests:
        left -= len(fact["failure"])
        failures.append(fact["failure"] if left >= 0 or not fact["failure"] else _NOT_HERE)
    page = environment.get_template("report.html.j2").render(
        report=report,
        tests=tests,
        columns=columns,
        rows=rows,
        outcomes=[outcome for outcome in SHOWN if any(fact["outcome"] == outcome for fact in tests)],
        bad=sum(fact["outcome"] in BAD for fact in tests),
        counters={name: count for name, count in counter_totals(tests).items() if count},
        worst_parity=worst_margin(tests),
        compile_seconds=sum(fact["compile_seconds"] for fact in tests),
        is_bad=BAD.__contains__,
        kept_code=kept_code,
        style=(_FOLDER / "report.css").read_text(encoding="utf-8"),
        script=(_FOLDER / "report.js").read_text(encoding="utf-8"),
        failures=failures,
        data=data,
        bare=bare,
    )
    return page.translate(_ESCAPES)


def _drawn(fact: Facts) -> dict[str, Any]:
    """Return ``fact`` with a place for each node of its small graphs, and boxes of its large ones."""
    details = fact["details"]
    if not details:
        return dict(fact)
    graphs = []
    for graph in details["graphs"]:
        nodes, is_large = graph["nodes"], len(graph["nodes"]) > MOST_NODES
        places = None if is_large else positions(nodes)
        graphs.append({**graph, "places": places, "boxes": boxes_of(nodes) if is_large else None})
    return {**fact, "details": {**details, "graphs": graphs}}


def _embedded(tests: Sequence[Facts]) -> tuple[str, int]:
    """Return what the script draws, and of how many tests that is nothing as the page would get too large.

    It is JSON that can stand inside a script element whatever texts are in it.
    """
    left, parts, bare = MOST_DATA, [], 0
    for fact in tests:
        part = _json(_drawn(fact)) if left > 0 else None
        if part is None or len(part) > left:
            bare += 1
            part = _json({"test": fact["test"], "outcome": fact["outcome"], "bare": True})
        else:
            left -= len(part)
        parts.append(part)
    return f"[{','.join(parts)}]", bare


def _json(data: Any) -> str:
    return dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
