"""``add_control_deps``: say which nodes of a graph have to wait for which others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch.fx

from pytest_regional.reference.effects import Edge, element_of
from pytest_regional.reference.ordering.errors import OrderingCycleError, OrderingError
from pytest_regional.reference.ordering.implied import Ancestors
from pytest_regional.reference.ordering.operator import wait_for
from pytest_regional.reference.ordering.sorting import sort_by
from pytest_regional.reference.ordering.waitable import waitable


@dataclass(frozen=True)
class AddedOrder:
    """What became of requested edges, each a pair ``(before, after)``.

    Attributes:
        added: those that the operator enforces now.
        implied: those that hold anyway, through the flow of values or through other edges.
        moved: nodes that stand elsewhere in the program now.
    """

    added: tuple[Edge, ...] = ()
    implied: tuple[Edge, ...] = ()
    moved: tuple[torch.fx.Node, ...] = ()


def add_control_deps(
    graph: torch.fx.Graph, dependencies: Mapping[torch.fx.Node, Iterable[torch.fx.Node]]
) -> AddedOrder:
    """Let each key of ``dependencies`` run after all nodes of its value, by PyTorch's ``control_deps`` operator.

    A node that waits becomes a call of the operator and keeps name, users, position where it may, and metadata;
    ``remove_control_deps`` undoes it. Edges that hold anyway cost nothing. A later dependency moves nodes. An element
    of a tuple stands for the op that makes the tuple. Nothing is changed when an error is raised. As after any change
    of a graph, its module needs ``recompile()`` before it is called.

    Raises:
        OrderingError: a node that is not in ``graph`` or cannot wait, no dependency, or one twice.
        OrderingCycleError: an order that cannot be kept, with the nodes of one cycle.
    """
    requested = list(_checked(graph, dependencies))
    moved = sort_by(graph, requested)
    position = {node: i for i, node in enumerate(graph.nodes)}
    wanted: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for before, after in requested:
        wanted.setdefault(after, []).append(before)
    # Edges are added in program order, so that an edge is judged with all earlier ones in place.
    ancestors = Ancestors(graph, (before for before, _ in requested))
    added: list[Edge] = []
    for node in list(graph.nodes):
        needed = ancestors.needed(node, wanted.get(node, ()), position)
        if needed:
            wait_for(node, [waitable(dependency) for dependency in needed])
            added += ((dependency, node) for dependency in needed)
    enforced = set(added)
    return AddedOrder(tuple(added), tuple(edge for edge in requested if edge not in enforced), moved)


def as_dependencies(edges: Iterable[Edge]) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """Return ``(before, after)`` pairs as what ``add_control_deps`` takes."""
    dependencies: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for before, after in edges:
        dependencies.setdefault(after, []).append(before)
    return dependencies


def _checked(graph: torch.fx.Graph, dependencies: Mapping[torch.fx.Node, Iterable[torch.fx.Node]]) -> Iterator[Edge]:
    """Yield the edges that are not void: a placeholder or an attribute is there before anything runs."""
    if graph.owning_module is None:
        raise OrderingError("the graph belongs to no GraphModule, which has to hold the bodies of control_deps")
    known = set(graph.nodes)
    edges: dict[Edge, None] = {}
    for node, asked in dependencies.items():
        _check_dependent(node, known)
        for dependency in _check_dependencies(node, asked, known):
            before, after = _producer(dependency), _producer(node)
            if before is after:
                raise OrderingCycleError(
                    f"{node.name!r} cannot wait for itself ({dependency.name!r} is made by the same op)",
                    (before.name, after.name),
                )
            edges[before, after] = None
    yield from (edge for edge in edges if edge[0].op not in ("placeholder", "get_attr"))


def _check_dependent(node: torch.fx.Node, known: set[torch.fx.Node]) -> None:
    _check_known(node, known, "asked to wait")
    if node.op != "call_function":
        raise OrderingError(
            f"{node.name!r} ({node.op}) cannot wait for anything: only calls of functions run at a time of their own"
        )


def _check_dependencies(
    node: torch.fx.Node, asked: Iterable[torch.fx.Node], known: set[torch.fx.Node]
) -> list[torch.fx.Node]:
    if isinstance(asked, torch.fx.Node) or not isinstance(asked, Iterable):
        raise OrderingError(f"dependencies of {node.name!r} must be a list of nodes, not {asked!r}")
    listed = list(asked)
    if not listed:
        raise OrderingError(f"{node.name!r} is given no dependency: leave it out, an empty wait does not lower")
    for number, dependency in enumerate(listed):
        _check_known(dependency, known, f"a dependency of {node.name!r}")
        if dependency.op == "output":
            raise OrderingError(f"{node.name!r} cannot run after the output of its graph")
        if dependency in listed[:number]:
            raise OrderingError(f"{node.name!r} is given the dependency {dependency.name!r} twice")
    return listed


def _check_known(node: object, known: set[torch.fx.Node], role: str) -> None:
    if not isinstance(node, torch.fx.Node):
        raise OrderingError(f"{node!r}, {role}, is no node of an FX graph")
    if node not in known:
        raise OrderingError(f"{node.name!r}, {role}, is not in this graph: it was erased, or belongs to another one")


def _producer(node: torch.fx.Node) -> torch.fx.Node:
    producer = element_of(node)
    return node if producer is None else _producer(producer)
