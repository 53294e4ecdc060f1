"""Waits as late as their first use allows, and views of what they give along with them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.fx

from pytest_regional.reference.overlap.claims import Claims
from pytest_regional.reference.overlap.ops import reads
from pytest_regional.reference.overlap.program import Program

Key = tuple[int, bool, int]


@dataclass
class Moves:
    """A new order of a program, and what kept nodes from moving further.

    Attributes:
        order: the nodes in their new order.
        moved: those that stand elsewhere than before.
        stops: for each wait or start that a bound held back, the bound and the node that must stay on its other side.
    """

    order: list[torch.fx.Node]
    moved: set[torch.fx.Node]
    stops: dict[torch.fx.Node, tuple[str, torch.fx.Node]] = field(default_factory=dict)


def sink_waits(program: Program, claims: Claims) -> Moves:
    """Move each wait to right before its first use, or as far as the bounds allow; one without any use stays.

    The last wait moves first: where room is for some collectives only, each then gets some overlap, instead of the
    first one all of it.
    """
    order = program.order
    uses = _uses(program)
    slots: dict[torch.fx.Node, int] = {}
    stops = {}
    for node in reversed(order):
        is_wait = node in program.waits
        if not (is_wait or program.is_view_of_result(node)) or not any(reads(user, node) for user in node.users):
            continue
        slots[node] = min(slots.get(user, uses[user]) for user in program.after[node])
        if is_wait:
            slot, bound = claims.latest(program.waits[node], node, slots[node])
            if bound is not None:
                stops[node] = (bound, order[slot])
                slot = uses[order[slot]]
            slots[node] = slot
            claims.wait_at(program.waits[node], slot)
    keys = _rearranged(program, slots)
    moved = {node for node, key in keys.items() if not key[1]}
    return Moves(sorted(order, key=keys.__getitem__), moved, stops)


def _uses(program: Program) -> dict[torch.fx.Node, int]:
    """Return where each node stands, with the attributes right before it, and a start with what prepares its inputs."""
    slots = {}
    attributes = preparations = 0
    for place, node in enumerate(program.order):
        slots[node] = preparations if node in program.starts else attributes
        attributes = attributes if node.op == "get_attr" else place + 1
        preparations = preparations if program.is_preparation(node) else place + 1
    return slots


def _rearranged(program: Program, slots: dict[torch.fx.Node, int]) -> dict[torch.fx.Node, Key]:
    """Put each wait before the node at its slot; a view stays unless a wait that it needs has passed it."""
    keys: dict[torch.fx.Node, Key] = {}
    for place, node in enumerate(program.order):
        slot = place
        if node in program.waits:
            slot = slots.get(node, place)
        elif node.op == "get_attr":
            slot = min((slots.get(user, place) for user in node.users), default=place)
        elif program.is_view_of_result(node):
            slot = max([place, *(keys[source][0] for source in program.before[node])])
        keys[node] = (slot, slot == place, place)
    return keys
