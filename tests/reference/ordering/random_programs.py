"""Random graphs with random legal order edges, and where each op ends up in generated code."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.inductor import recording_launches
from pytest_regional.reference import regional_inductor
from pytest_regional.reference.compile_regions import compile_with_inductor

aten = torch.ops.aten
SIZE = 8
ID = "order_id"

_UNARY = (aten.sin, aten.cos, aten.exp, aten.relu, aten.sigmoid, aten.tanh, aten.neg)
_BINARY = (aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor, aten.maximum.default)

Place = tuple[int, int, int]


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


@dataclass
class PlacesInCode:
    """Where the ops of a program run: steps of the outer graph, launches within each region, loops of a launch."""

    by_id: dict[int, list[Place]] = field(default_factory=dict)

    def note(self, number: int, place: Place) -> None:
        """Note one place of one op."""
        self.by_id.setdefault(number, []).append(place)

    def verdict(self, edge: tuple[int, int]) -> str:
        """Say whether the edge is ``kept``, ``fused``, ``violated``, or an end of it is ``merged`` into another op."""
        before, after = (sorted(self.by_id.get(end, ())) for end in edge)
        if not before or not after:
            return "merged"
        # Inductor may compute a value once more where it is used; the first time is when others can wait for it.
        if before[0] == after[0]:
            return "fused"
        return "kept" if before[0] < after[0] else "violated"


def ids_of(nodes: Sequence[torch.fx.Node]) -> set[int]:
    """Return the ids that ``nodes`` bear or inherited."""
    found = (node.meta.get("custom", {}) for node in nodes)
    return {custom[ID] for custom in found if ID in custom}


class RecordingCompiler:
    """Compiles a region and notes which ops each of its launches computes."""

    def __init__(self) -> None:
        self.launches: dict[str, list[set[tuple[int, int]]]] = {}

    def __call__(self, request: Any) -> Any:
        """Compile as ever."""
        with recording_launches() as launches:
            compiled = compile_with_inductor(request)
        self.launches[request.name] = [launched(launch) for launch in launches]
        return compiled


def launched(launch: Any) -> set[tuple[int, int]]:
    """Return loop and id of each op that one launch computes, without those that only its inputs come from."""
    if launch.is_extern:
        return {(0, number) for number in ids_of([launch.node] if launch.node is not None else [])}
    made = zip(launch.loops, launch.buffers, strict=True)
    return {(loop, number) for loop, (_, nodes) in made for number in ids_of(nodes)}


def places_through_regions(program: RandomProgram) -> tuple[PlacesInCode, torch.fx.GraphModule]:
    """Compile the regions of ``program``; return where everything runs, and the compiled graph."""
    compiler = RecordingCompiler()
    gm = regional_inductor(program.module, *program.inputs, compiler=compiler, share_identical=False)
    places = PlacesInCode()
    for step, node in enumerate(gm.graph.nodes):
        if node.name in compiler.launches:
            for launch, loops in enumerate(compiler.launches[node.name]):
                for loop, number in loops:
                    places.note(number, (step, launch, loop))
        elif node.op == "call_function" and node.target is not operator.getitem:
            for number in ids_of([node]):
                places.note(number, (step, 0, 0))
    return places, gm
