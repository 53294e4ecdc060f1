"""``remove_control_deps``: the plain graph back, and the order that was asked for as pairs of nodes."""

from __future__ import annotations

from collections.abc import Iterator

import torch.fx

from pytest_regional.reference.effects import Edge, element_of
from pytest_regional.reference.ordering.operator import dependencies_of, is_control_deps, unwrap
from pytest_regional.reference.ordering.waitable import undo_waitable


def remove_control_deps(graph: torch.fx.Graph, *, bodies: bool = True) -> tuple[Edge, ...]:
    """Make every ordered op of ``graph`` a bare op again; return the edges as ``(before, after)``, in program order.

    Names, metadata and positions stay. Bodies of higher-order ops (branches, loops) are made plain too, unless
    ``bodies`` is false; their edges are not returned. Call ``recompile()`` on the module afterwards.
    """
    edges = [edge for node in list(graph.nodes) for edge in _made_plain(node)]
    undo_waitable(graph)
    if bodies and graph.owning_module is not None:
        _remove_in_bodies(graph.owning_module, graph)
    return tuple(edges)


def _made_plain(node: torch.fx.Node) -> Iterator[Edge]:
    """Unwrap ``node``, and what its body wraps in turn (PyTorch nests where order is asked for twice)."""
    if not is_control_deps(node):
        return
    dependencies = [_producer(dependency) for dependency in dependencies_of(node)]
    for stands_for_it in unwrap(node):
        within = list(_made_plain(stands_for_it))
        ends = dict.fromkeys(after for _, after in within) or {stands_for_it: None}
        yield from within
        yield from ((before, after) for after in ends for before in dependencies)


def _producer(node: torch.fx.Node) -> torch.fx.Node:
    producer = element_of(node)
    return node if producer is None else producer


def _remove_in_bodies(owner: torch.fx.GraphModule, graph: torch.fx.Graph) -> None:
    for node in graph.find_nodes(op="get_attr"):
        body = getattr(owner, str(node.target), None)
        if isinstance(body, torch.fx.GraphModule) and _may_hold_order(body):
            remove_control_deps(body.graph)
            body.recompile()


def _may_hold_order(body: torch.fx.GraphModule) -> bool:
    return any(is_control_deps(node) or node.op == "get_attr" for node in body.graph.nodes)
