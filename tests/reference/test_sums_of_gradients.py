"""Which region takes a sum of gradients, and that no plan needs more partitions for it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_regional.reference import Partition, plan_partitions
from pytest_regional.reference.gradients import with_sums_of_gradients
from pytest_regional.reference.regions import read_region_keys
from tests.reference.graphs import ATEN, annotate_node, diamond


def with_sums(gm, names):
    """Mark nodes as AOTAutograd marks sums of gradients."""
    for node in gm.graph.nodes:
        if node.name in names:
            node.meta |= {"is_gradient_acc": True, "partitioner_tag": "is_backward"}
    return gm


def taken(lines, sums, outputs=None, ordered=()):
    """Return the regions of the sums that any takes."""
    graph = with_sums(diamond(lines, outputs), sums).graph
    ordered = {node for node in graph.nodes if node.name in ordered}
    keys = with_sums_of_gradients(graph, read_region_keys(graph), ordered)
    return {node.name: key.label for node, key in keys.items() if node.name in sums}


CASES = {
    "added and read there": (["p a x", "q a x", "s u p q", "r a s"], "s", {"s": "a"}),
    "returned": (["p a x", "q a x", "s u p q"], "s", {}),
    "read there and returned": (["p a x", "q a x", "s u p q", "r a s", "t u s"], "s", {"s": "a"}),
    "read by an op outside": (["p a x", "q a x", "s u p q", "r u s"], "s", {}),
    "read by another region": (["p a x", "q a x", "s u p q", "r b s"], "s", {}),
    "read there and by another region": (["p a x", "q a x", "s u p q", "r a s", "t b s"], "s", {"s": "a"}),
    "adds an input of the graph": (["p a x", "s u p x", "r a s"], "s", {"s": "a"}),
    "adds an op outside, read there": (["p a x", "e u p", "q a x", "s u q e", "r a s"], "s", {"s": "a"}),
    "adds an op outside, read there and outside": (["p a x", "e u p", "q a x", "s u q e", "r a s", "t u s"], "s", {}),
    "adds an op outside, returned": (["p a x", "e u x", "s u p e"], "s", {}),
    "adds two regions, returned": (["p a x", "q b x", "s u p q"], "s", {}),
    "adds two regions, read by one": (["p a x", "q b x", "s u p q", "r a s"], "s", {}),
    "adds ops outside": (["e u x", "f u x", "s u e f", "r a s"], "s", {}),
    "adds inputs of the graph": (["s u x x", "r a s"], "s", {}),
    "three": (["p a x", "q a x", "r a x", "s u p q", "t u s r", "v a t"], "st", {"s": "a", "t": "a"}),
    "three, the last outside": (["p a x", "q a x", "e u q", "s u p q", "t u s e", "v a t"], "st", {"s": "a", "t": "a"}),
    "three, the first outside": (
        ["p a x", "q a x", "e u q", "s u p e", "t u s q", "v a t"],
        "st",
        {"s": "a", "t": "a"},
    ),
    "three, two outside": (["p a x", "e u p", "f u p", "s u p e", "t u s f", "v a t"], "st", {"s": "a", "t": "a"}),
    "three, one of another region": (["p a x", "q b x", "r a x", "s u p q", "t u s r", "v a t"], "st", {}),
    "a weight of two blocks": (["p a x", "e u p", "q a e", "s u p q"], "s", {}),
    "a weight of three blocks": (["p a x", "q a x", "r a x", "s u p q", "t u s r"], "st", {}),
    "passes through": (["e u x", "p a e", "s u p e", "r a s", "t u s"], "s", {"s": "a"}),
    "passes through from another region": (["e b x", "p a e", "s u p e", "r a s", "t u s"], "s", {"s": "a"}),
    "passes by": (["e u x", "q a x", "p a x", "s u p e", "r a s", "t u s"], "s", {}),
    "passes between two halves": (["q a x", "e u q", "p a e", "s u p e", "r a s", "t u s"], "s", {}),
    "passes through two regions": (
        ["e b x", "p a e", "s u p e", "q a s", "t u s q", "v c t", "w u v t", "y c w", "z u w y"],
        "stwz",
        {"s": "a", "w": "c"},
    ),
    "annotated anyway": (["p a x", "q a x", "s a p q"], "s", {"s": "a"}),
}


@pytest.mark.parametrize(("lines", "sums", "regions"), CASES.values(), ids=CASES)
def test_the_region_of_a_sum(lines, sums, regions):
    assert taken(lines, sums) == regions


def test_an_addition_of_the_program_is_no_sum_of_gradients():
    assert taken(["p a x", "q a x", "s u p q", "r a s"], "") == {}
    assert len(plan_partitions(diamond(["p a x", "q a x", "s u p q", "r a s"]).graph).partitions) == 2


def test_a_sum_with_order_edges_is_left_alone():
    lines = ["p a x", "q a x", "e u p", "s u p q", "r a s"]
    assert taken(lines, "s", ordered="s") == {}
    gm = with_sums(diamond(lines, outputs=["r", "e"]), "s")
    nodes = {node.name: node for node in gm.graph.nodes}
    free, held = (plan_partitions(gm.graph, extra_edges=edges) for edges in ((), [(nodes["e"], nodes["s"])]))
    assert [len(free.partitions), len(held.partitions)] == [1, 2]


def test_keys_that_are_given_are_the_last_word():
    gm = with_sums(diamond(["p a x", "q a x", "s u p q", "r a s"]), "s")
    assert len(plan_partitions(gm.graph, read_region_keys(gm.graph)).partitions) == 2
    assert len(plan_partitions(gm.graph).partitions) == 1


@st.composite
def backwards(draw, ids):
    """Draw graphs of which any unannotated node may be a sum of gradients, once with and once without saying so."""
    size = draw(st.integers(4, 40))
    random = draw(st.randoms(use_true_random=False))
    reach = random.choice((2, 5, size))
    nodes = [
        (random.randrange(reach), random.randrange(reach), random.choice(ids), random.random() < 0.7)
        for _ in range(size)
    ]

    def build(marked):
        graph = torch.fx.Graph()
        values = [graph.placeholder("x"), graph.placeholder("y")]
        for left, right, name, is_sum in nodes:
            arguments = values[-1 - left % len(values)], values[-1 - right % len(values)]
            values.append(graph.call_function(ATEN.add.Tensor, arguments))
            if name is not None:
                annotate_node(values[-1], {"inductor_region": name})
            elif is_sum and marked:
                values[-1].meta["is_gradient_acc"] = True
        graph.output(tuple(value for value in values[2:] if not value.users))
        return torch.fx.GraphModule({}, graph)

    return build(marked=True), build(marked=False)


@given(backwards((None, "a")))
def test_one_region_never_takes_more_partitions_for_its_sums(graphs):
    taking, leaving = (plan_partitions(gm.graph) for gm in graphs)
    assert len(taking.partitions) <= len(leaving.partitions)


@given(backwards((None, None, "a", "b", "c")))
def test_any_plan_with_sums_is_one(graphs):
    taking, leaving = graphs
    plan = plan_partitions(taking.graph)
    assert plan.least_partitions <= plan_partitions(leaving.graph).least_partitions
    steps = {
        node: i for i, step in enumerate(plan.steps) for node in (step.nodes if isinstance(step, Partition) else [step])
    }
    ops = [node for node in taking.graph.nodes if node.op == "call_function"]
    assert steps.keys() == set(ops)
    for partition in plan.partitions:
        strange = [node for node in partition.nodes if node not in read_region_keys(taking.graph)]
        assert all(node.meta.get("is_gradient_acc") for node in strange)
    for node in ops:
        assert all(steps[source] <= steps[node] for source in node.all_input_nodes if source in steps)


def test_work_is_linear_in_the_sums():
    """A long chain of sums, each added to the last, is looked at once from either end."""
    lines = ["p0 a x", "s0 u p0 x"]
    for i in range(1, 4000):
        lines += [f"p{i} a x", f"s{i} u s{i - 1} p{i}"]
    gm = with_sums(diamond([*lines, "r a s3999"]), {f"s{i}" for i in range(4000)})
    (partition,) = plan_partitions(gm.graph).partitions
    assert len(partition.nodes) == 8001
