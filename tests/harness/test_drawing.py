"""The graphs that a report draws: nodes, regions, partitions, order edges."""

import pytest
import torch
from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._ordered_set import OrderedSet

from pytest_regional import region
from pytest_regional.harness.observe.listeners import GraphDrawer
from pytest_regional.testing import regional


def two_parts(x, w):
    with region("a"):
        h = x @ w
    h = h.sin()
    with region("a"):
        return h @ w


@pytest.fixture
def drawer():
    return GraphDrawer(kept=3)


def drawn(drawer, backend, program=two_parts, **options):
    with regional(backend, **options) as r:
        r.observer.listeners.append(drawer)
        r.run(program, r.randn(4, 4, requires_grad=True), r.randn(4, 4))
    return list(drawer.graphs)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_nodes_regions_and_partitions(drawer, backend):
    forward, backward = drawn(drawer, backend)
    assert (forward.kind, backward.kind) == ("forward", "backward")
    node = {node.name: node for node in forward.nodes}
    assert [node[name].op for name in ("mm", "sin", "mm_1")] == [
        "aten.mm.default",
        "aten.sin.default",
        "aten.mm.default",
    ]
    assert [node[name].region for name in ("mm", "sin", "mm_1")] == ["a", None, "a"]
    assert node["sin"].inputs == ("mm",)
    assert {one.op for one in forward.nodes} >= {"input", "output"}
    assert node["mm"].source.startswith("test_drawing.py:")
    assert forward.partition_of(node["sin"]) is None
    if backend == "torch":  # the reference shares one compile between equal partitions
        assert forward.partition_of(node["mm"]) != forward.partition_of(node["mm_1"])
    assert forward.partition_of(node["mm"]) == 0


def test_only_the_last_are_kept_and_all_are_counted(drawer):
    with regional("aot_eager", expects_regions=False) as r:
        r.observer.listeners.append(drawer)
        for size in range(2, 7):
            r.compile(torch.sin, dynamic=False)(r.randn(size))
            r.restart()
    assert (len(drawer.graphs), drawer.count) == (3, 5)


def ordered_graph():
    """``x + 1``, then ``w @ w``, then ``x * 2``, by order edges alone."""

    def independent(x, w):
        return x + 1, w @ w, x * 2

    gm = make_fx(independent)(torch.randn(2, 2), torch.randn(2, 2))
    node = {node.name: node for node in gm.graph.nodes}
    preserve_node_ordering(gm.graph, {node["mm"]: OrderedSet([node["add"]]), node["mul"]: OrderedSet([node["mm"]])})
    return gm


def test_an_order_edge(drawer):
    with drawer.compiling_graph("inference", ordered_graph()):
        pass
    (graph,) = drawer.graphs
    assert graph.after == {"mm": ["add"], "mul": ["mm"]}
    node = {node.name: node for node in graph.nodes}
    assert node["mm"].op == "aten.mm.default"
    assert node["mm"].inputs == ("w_1",)


def test_an_order_edge_in_what_inductor_is_handed(drawer):
    without = make_fx(lambda x: x + 1)(torch.randn(2))
    with drawer.compiling_graph("inference", without), drawer.compiling_region(ordered_graph(), ()):
        pass
    (graph,) = drawer.graphs
    assert graph.after == {"mm": ["add"], "mul": ["mm"]}


def test_regions_that_ask_for_others_to_run_first(drawer):
    def program(x, w):
        with region("a"):
            first = x @ w @ w
        with region("b", after=["a"]):
            return first, w @ x @ x

    forward, backward = drawn(drawer, "reference", program)
    assert forward.after == {"mm_2": ["mm_1"]}
    ((later, (earlier,)),) = backward.after.items()
    regions = {node.name: node.region for node in backward.nodes}
    assert (regions[earlier], regions[later]) == ("b", "a")
