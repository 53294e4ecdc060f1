"""Functional collectives of a graph: which node starts one, and which nodes wait for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch.fx

from pytest_regional._torch.collectives import NAMESPACE, group_name
from pytest_regional.reference.effects import COLLECTIVE, effect_classes
from pytest_regional.reference.overlap.ops import Op, is_element, reads

_SINGLE = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce", "all_to_all_single", "broadcast")
_COALESCED = ("all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced", "all_reduce_coalesced")
_WAIT = "wait_tensor"


@dataclass(frozen=True)
class Collective:
    """One functional collective.

    Attributes:
        start: the node that issues it, bare or in ``control_deps``.
        waits: the nodes that wait for its results, in program order; at least one.
        elements: the nodes that pick results of a coalesced collective.
        op: what it does, such as ``all_reduce``.
        group: name of its process group.
    """

    start: torch.fx.Node
    waits: tuple[torch.fx.Node, ...]
    elements: tuple[torch.fx.Node, ...]
    op: str
    group: str


def find_collectives(order: Sequence[torch.fx.Node], ops: Mapping[torch.fx.Node, Op]) -> list[Collective]:
    """Return the collectives whose start and waits can be moved, in program order.

    A start without a wait, or whose result somebody reads without waiting, is none of them.
    """
    position = {node: i for i, node in enumerate(order)}
    found = [_collective(node, ops, position) for node in order if _is_start(ops.get(node))]
    return [collective for collective in found if collective is not None]


def other_collectives(
    order: Sequence[torch.fx.Node], ops: Mapping[torch.fx.Node, Op], known: set[torch.fx.Node]
) -> set[torch.fx.Node]:
    """Return what issues collectives besides those in ``known``: nothing is issued earlier than they are."""
    candidates = (node for node in order if node not in known and not is_wait(ops.get(node)))
    return {node for node in candidates if COLLECTIVE in effect_classes(node)}


def is_wait(op: Op | None) -> bool:
    """Return whether ``op`` waits for a collective."""
    return op is not None and op.namespace == NAMESPACE and op.name == _WAIT


def _is_start(op: Op | None) -> bool:
    return op is not None and op.namespace == NAMESPACE and op.name in (*_SINGLE, *_COALESCED)


def _collective(
    start: torch.fx.Node, ops: Mapping[torch.fx.Node, Op], position: Mapping[torch.fx.Node, int]
) -> Collective | None:
    op = ops[start]
    elements = [user for user in start.users if is_element(ops.get(user))]
    readers = {user for node in (start, *elements) for user in node.users if reads(user, node)}.difference(elements)
    if not readers or not all(is_wait(ops.get(reader)) for reader in readers):
        return None
    waits = sorted(readers, key=position.__getitem__)
    return Collective(start, tuple(waits), tuple(elements), op.name, group_name(op.argument("group_name")))
