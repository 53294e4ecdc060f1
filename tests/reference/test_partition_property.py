"""Any graph: the plan is acyclic, mixes no keys, keeps every order, and computes the same bits."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.partitioning import torch_region_count
from pytest_regional._torch import torch_version
from pytest_regional.reference import Partition, plan_partitions
from pytest_regional.reference.extract import extract_partitions, install_submodules
from tests.reference.graphs import ATEN, annotate_node

IDS = (None, "a", "b", "c", "d")


@dataclass(frozen=True)
class DagSpec:
    """Each node: which earlier values it reads (counted backwards), its region; and order edges by node number."""

    nodes: tuple
    edges: tuple

    def build(self):
        """Return the graph module and the order edges among its nodes."""
        graph = torch.fx.Graph()
        values = [graph.placeholder("x"), graph.placeholder("y")]
        for left, right, name in self.nodes:
            arguments = values[-1 - left % len(values)], values[-1 - right % len(values)]
            node = graph.call_function(ATEN.sub.Tensor, arguments)
            values.append(node if name is None else annotate_node(node, {"inductor_region": name}))
        made = values[2:]
        graph.output(tuple(value for value in made if not value.users))
        return torch.fx.GraphModule({}, graph), [(made[a], made[b]) for a, b in self.edges]


@st.composite
def dags(draw):
    """Draw DAGs of 5 to 40 nodes; they shrink to few nodes, near arguments, no regions, no order edges."""
    size = draw(st.integers(5, 40))
    ids = IDS[: draw(st.integers(2, len(IDS)))]
    reach = draw(st.sampled_from((2, 8, size)))
    random = draw(st.randoms(use_true_random=False))
    nodes = tuple((random.randrange(reach), random.randrange(reach), random.choice(ids)) for _ in range(size))
    pairs = (sorted(random.sample(range(size), 2)) for _ in range(random.choice((0, 3, size // 4))))
    return DagSpec(nodes, tuple(map(tuple, pairs)))


def step_numbers(plan):
    """Map every node to the number of the step that runs it."""
    numbers = {}
    for number, step in enumerate(plan.steps):
        for node in step.nodes if isinstance(step, Partition) else (step,):
            assert node not in numbers
            numbers[node] = number
    return numbers


def minimum_for_one_key(gm, edges):
    """Count the most alternations on any path, by brute force over all nodes."""
    depth = {}
    before = {node: [*node.all_input_nodes, *(a for a, b in edges if b is node)] for node in gm.graph.nodes}
    for node in gm.graph.nodes:
        marked = "custom" in node.meta
        reached = [depth[a] + (marked and "custom" not in a.meta) for a in before[node]]
        depth[node] = max([int(marked), *reached])
    return max((d for node, d in depth.items() if "custom" in node.meta), default=0)


@given(dags())
def test_plan_of_any_graph(spec):
    gm, edges = spec.build()
    plan = plan_partitions(gm.graph, extra_edges=edges)
    numbers = step_numbers(plan)

    assert set(numbers) == {node for node in gm.graph.nodes if node.op == "call_function"}
    flow = [(a, b) for b in numbers for a in b.all_input_nodes if a in numbers]
    # Steps are numbered in execution order: edges that never run backwards leave no room for a cycle.
    assert all(numbers[a] <= numbers[b] for a, b in [*flow, *edges])
    assert all(numbers[a] < numbers[b] for a, b in flow if a.meta.get("custom") != b.meta.get("custom"))
    for partition in plan.partitions:
        assert {node.meta["custom"]["compile_with_inductor"]["inductor_region"] for node in partition.nodes} == {
            partition.key.label
        }
        order = list(partition.nodes)
        assert all(order.index(a) < order.index(b) for a, b in [*flow, *edges] if a in order and b in order)
    assert plan.least_partitions <= len(plan.partitions)
    if len({partition.key for partition in plan.partitions}) == 1:
        assert len(plan.partitions) == plan.least_partitions == minimum_for_one_key(gm, edges)
    assert [p.nodes for p in plan_partitions(gm.graph, extra_edges=edges).partitions] == [
        p.nodes for p in plan.partitions
    ]


@given(dags())
def test_extracted_graph_computes_the_same_bits(spec):
    gm, edges = spec.build()
    inputs = torch.randn(4), torch.randn(4)
    expected = torch.fx.Interpreter(gm).run(*inputs)
    regions = extract_partitions(gm, plan_partitions(gm.graph, extra_edges=edges))
    install_submodules(gm, regions)
    gm.graph.lint()
    actual = torch.fx.Interpreter(gm).run(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert sum(len(region.partition.nodes) for region in regions) == sum(
        node.op == "call_function" for region in regions for node in region.module.graph.nodes
    )


@pytest.mark.skipif(torch_version() < (2, 13), reason="torch 2.11 knows no region ids")
@settings(settings.get_profile("ci"), max_examples=25)
@given(dags())
def test_no_more_partitions_than_pytorch(spec):
    """Where PyTorch succeeds: it partitions each region alone and fails on about a third of these graphs."""
    ours = len(plan_partitions(spec.build()[0].graph).partitions)
    try:
        theirs = torch_region_count(spec.build()[0])
    except (AssertionError, RuntimeError):
        return
    assert ours <= theirs
