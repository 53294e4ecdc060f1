"""Random programs with random edges that some order satisfies: every edge holds when the program runs."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from pytest_regional import region

from .edges import AddEdges, run_ordered, run_ordered_regions

pytestmark = pytest.mark.regional_compile(requires=("inductor_code",), dynamic=False)

STEPS: list[int] = []


@torch.library.custom_op("pytest_regional_suites::step", mutates_args=())
def step(x: torch.Tensor, y: torch.Tensor, number: int) -> torch.Tensor:
    """Return the product and note when it ran."""
    STEPS.append(number)
    return x @ y


@step.register_fake
def _(x: torch.Tensor, y: torch.Tensor, number: int) -> torch.Tensor:
    return torch.empty_like(x)


class RandomProgram:
    """Twelve steps that read what earlier ones made, and six edges along a random order of them."""

    def __init__(self, seed: int, *, steps: int = 12, edges: int = 6) -> None:
        draw = random.Random(seed)
        # Values 0 and 1 are the inputs; the value of step i is i + 2.
        self.reads = [(draw.randrange(i + 2), draw.randrange(i + 2)) for i in range(steps)]
        order = self._random_order(draw)
        self.edges = draw.sample(list(itertools.combinations(order, 2)), edges)

    def _random_order(self, draw: random.Random) -> list[int]:
        order: list[int] = []
        while len(order) < len(self.reads):
            ready = [i for i, reads in enumerate(self.reads) if i not in order and self._made(reads, order)]
            order.append(draw.choice(ready))
        return order

    @staticmethod
    def _made(reads: tuple[int, int], order: list[int]) -> bool:
        return all(value < 2 or value - 2 in order for value in reads)

    def __call__(self, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        values = [x, w]
        with region("r"):
            for number, (left, right) in enumerate(self.reads):
                values.append(step(values[left], values[right], number))
        return values[2:]

    def violated(self) -> list[tuple[int, int]]:
        """Return the edges that the last run did not keep."""
        return [(before, after) for before, after in self.edges if STEPS.index(before) > STEPS.index(after)]


class OrderSteps(AddEdges):
    """Adds the edges of a program, whose steps are told apart by their numbers."""

    def __init__(self, program: RandomProgram) -> None:
        super().__init__(*((str(before), str(after)) for before, after in program.edges))

    def ops(self, graph: torch.fx.Graph) -> dict[str, torch.fx.Node]:
        target = torch.ops.pytest_regional_suites.step.default
        return {str(node.args[2]): node for node in graph.find_nodes(op="call_function", target=target)}


def check(run, regional, seed):
    program = RandomProgram(seed)
    adding = OrderSteps(program)
    STEPS.clear()
    # The eager run that follows notes its steps behind those of the compiled one.
    run(regional, program, regional.randn(8, 8) / 3, regional.randn(8, 8) / 3, edges=adding)
    (report,) = adding.reports
    assert sorted(STEPS[:12]) == list(range(12))
    assert program.violated() == []
    assert len(report.added) + len(report.implied) == 6


@pytest.mark.parametrize("seed", range(10))
def test_every_edge_holds(regional, seed):
    check(run_ordered, regional, seed)


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("region_order",))
@pytest.mark.parametrize("seed", range(5))
def test_every_edge_in_a_region_holds(regional, seed):
    check(run_ordered_regions, regional, seed)


def test_without_them_some_do_not(regional):
    violated = []
    for seed in range(3):
        STEPS.clear()
        program = RandomProgram(seed)
        regional.run(program, regional.randn(8, 8) / 3, regional.randn(8, 8) / 3)
        violated += program.violated()
    assert len(violated) >= 3
