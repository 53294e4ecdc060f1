"""Print what becomes of random order edges: ``python -m bench.random_order [PROGRAMS]``.

Random programs of 12 ops with 6 edges each, which some order of each program satisfies. The edges are added in three
ways: to the graph, whose regions are then compiled (every other program is one region, the others are two and eager
ops); by a pass behind Inductor's own, with ``add_control_deps``; by the same pass with PyTorch's
``preserve_node_ordering``. Kernels are generated and read, not built.

An edge is *visible* when the first launch (or loop) of the one op stands before that of the other, *redundant* when
values or other edges imply it, and then may be one loop; *merged* when Inductor made one op of one end and a third,
so that the code does not tell. All others are *violated*.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import torch
import torch.fx

from pytest_regional._torch.inductor import kernels_not_built, post_grad_pass
from pytest_regional._torch.operators import preserve_node_ordering
from pytest_regional.reference.ordering import add_control_deps
from tests.reference.ordering.random_programs import (
    ID,
    PlacesInCode,
    RandomProgram,
    places_through_regions,
    random_program,
)

Edge = tuple[int, int]
Orderer = Callable[[torch.fx.Graph, dict[torch.fx.Node, list[torch.fx.Node]]], object]


def through_regions(seed: int) -> tuple[RandomProgram, PlacesInCode, set[Edge]]:
    """Add the edges to the graph; return the program, where its ops run, and which edges are redundant."""
    program = random_program(seed, regions=("a",) if seed % 2 else ("a", "b", None))
    numbers = {node: number for number, node in program.nodes().items()}
    report = add_control_deps(program.module.graph, program.asked())
    implied = {(numbers[a], numbers[b]) for a, b in report.implied}
    return program, places_through_regions(program)[0], implied


def by_pass(seed: int, orderer: Orderer) -> tuple[RandomProgram, PlacesInCode, set[Edge]]:
    """Add the edges behind Inductor's own passes."""
    program = random_program(seed)
    with _adding(program.edges, orderer):
        return program, places_through_regions(program)[0], _implied(seed)


def _implied(seed: int) -> set[Edge]:
    program = random_program(seed)
    numbers = {node: number for number, node in program.nodes().items()}
    report = add_control_deps(program.module.graph, program.asked())
    return {(numbers[a], numbers[b]) for a, b in report.implied}


@contextlib.contextmanager
def _adding(edges: tuple[Edge, ...], orderer: Orderer) -> Iterator[None]:
    def add(graph: torch.fx.Graph) -> None:
        found: dict[int, list[torch.fx.Node]] = {}
        for node in graph.nodes:
            if node.op == "call_function" and ID in node.meta.get("custom", {}):
                found.setdefault(node.meta["custom"][ID], []).append(node)
        asked: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        for before, after in edges:
            if before in found and after in found:
                asked.setdefault(found[after][0], []).append(found[before][-1])
        if asked:
            orderer(graph, asked)

    with post_grad_pass(add):
        yield


WAYS: dict[str, Callable[[int], tuple[RandomProgram, PlacesInCode, set[Edge]]]] = {
    "through regions": through_regions,
    "pass with add_control_deps": lambda seed: by_pass(seed, add_control_deps),
    "pass with preserve_node_ordering": lambda seed: by_pass(seed, preserve_node_ordering),
}


def outcome(places: PlacesInCode, edge: Edge, implied: set[Edge]) -> str:
    """Say what became of one edge."""
    verdict = places.verdict(edge)
    if verdict == "merged":
        return "merged"
    if edge in implied:
        return "redundant" if verdict != "violated" else "violated"
    return "visible" if verdict == "kept" else "violated"


def measure(way: str, programs: int) -> Counter[str]:
    """Count outcomes over ``programs`` programs; a program that does not compile counts all its edges as such."""
    counts: Counter[str] = Counter()
    for seed in range(programs):
        requested = len(random_program(seed).edges)
        counts["requested"] += requested
        try:
            program, places, implied = WAYS[way](seed)
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises is what is counted
            print(f"  {way}, seed {seed}: {type(error).__name__}: {' '.join(str(error).split())[:100]}")
            counts["not compiled"] += requested
            continue
        found = {edge: outcome(places, edge, implied) for edge in program.edges}
        counts.update(found.values())
        violated = [edge for edge, what in found.items() if what == "violated"]
        if violated and "preserve" not in way:
            print(f"  {way}, seed {seed}: violated {violated}")
    return counts


def main() -> None:
    """Print one line for each way."""
    programs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    columns = ("requested", "visible", "redundant", "merged", "violated", "not compiled")
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {programs} programs")
    print(f"{'':34}" + "".join(f"{column:>14}" for column in columns))
    for way in WAYS:
        with kernels_not_built():
            counts = measure(way, programs)
        print(f"{way:34}" + "".join(f"{counts[column]:14}" for column in columns))


if __name__ == "__main__":
    main()
