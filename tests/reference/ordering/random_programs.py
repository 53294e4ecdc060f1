"""Random graphs with random legal order edges."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

aten = torch.ops.aten
SIZE = 8
ID = "order_id"

_UNARY = (aten.sin, aten.cos, aten.exp, aten.relu, aten.sigmoid, aten.tanh, aten.neg)
_BINARY = (aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor, aten.maximum.default)


@dataclass(frozen=True)
class RandomProgram:
    """A graph, inputs for it, and edges ``(before, after)`` between ids of its ops that some order satisfies."""

    module: torch.fx.GraphModule
    inputs: tuple[torch.Tensor, ...]
    edges: tuple[tuple[int, int], ...]

    def nodes(self) -> dict[int, torch.fx.Node]:
        """Return the op of each id."""
        return {node.meta["custom"][ID]: node for node in self.module.graph.nodes if ID in node.meta.get("custom", {})}

    def asked(self) -> dict[torch.fx.Node, list[torch.fx.Node]]:
        """Return the edges as ``add_control_deps`` takes them."""
        nodes, found = self.nodes(), {}
        for before, after in self.edges:
            found.setdefault(nodes[after], []).append(nodes[before])
        return found


def random_program(
    seed: int, *, ops: int = 12, edges: int = 6, regions: Sequence[str | None] = ("a",)
) -> RandomProgram:
    """Draw a program; a region of ``None`` stays eager."""
    draw = random.Random(seed)
    graph = torch.fx.Graph()
    values = [graph.placeholder("x"), graph.placeholder("w")]
    made: list[torch.fx.Node] = []
    for number in range(ops):
        node = _random_op(graph, draw, values)
        region = draw.choice(regions)
        custom: dict[str, Any] = {} if region is None else {"compile_with_inductor": {"inductor_region": region}}
        node.meta["custom"] = {**custom, ID: number}
        values.append(node)
        made.append(node)
    graph.output(tuple(node for node in made if not node.users))
    generator = torch.Generator().manual_seed(seed)
    inputs = tuple(torch.randn(SIZE, SIZE, generator=generator) / SIZE for _ in range(2))
    return RandomProgram(torch.fx.GraphModule({}, graph), inputs, tuple(_legal_edges(draw, made, edges)))


def _random_op(graph: torch.fx.Graph, draw: random.Random, values: Sequence[torch.fx.Node]) -> torch.fx.Node:
    kind = draw.random()
    recent = values[-6:]
    if kind < 0.45:
        return graph.call_function(draw.choice(_UNARY).default, (draw.choice(recent),))
    if kind < 0.75:
        return graph.call_function(draw.choice(_BINARY), (draw.choice(recent), draw.choice(recent)))
    if kind < 0.9:
        return graph.call_function(aten.mm.default, (draw.choice(recent), draw.choice(recent)))
    return graph.call_function(aten._softmax.default, (draw.choice(recent), draw.choice([0, 1]), False))


def _legal_edges(draw: random.Random, made: Sequence[torch.fx.Node], count: int) -> Iterator[tuple[int, int]]:
    """Draw pairs along a random order that the flow of values allows, so that together they have no cycle."""
    number = {node: i for i, node in enumerate(made)}
    waiting = {node: sum(source in number for source in node.all_input_nodes) for node in made}
    order: list[int] = []
    ready = [node for node in made if not waiting[node]]
    while ready:
        node = ready.pop(draw.randrange(len(ready)))
        order.append(number[node])
        for user in node.users:
            if user in waiting:
                waiting[user] -= 1
                if not waiting[user]:
                    ready.append(user)
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
    yield from draw.sample(pairs, min(count, len(pairs)))
