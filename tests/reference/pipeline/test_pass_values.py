"""Nodes that a pass adds get the values that partitioners and compilers want of every node."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_regional import region
from pytest_regional._torch.dynamo import restart_exceptions
from pytest_regional.reference import RegionalInductor, pipeline
from pytest_regional.reference.passes import AddControlDeps
from pytest_regional.reference.pipeline import PassFailedError, PassPipeline, graph_pass

from .models import step
from .pass_examples import aten, traced


def sigmoids_for_tanh(gm):
    """Compute tanh as 2 * sigmoid(2 * x) - 1, of nodes that nobody gave a value."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.tanh.default):
        with gm.graph.inserting_before(node):
            doubled = gm.graph.call_function(aten.mul.Tensor, (node.args[0], 2))
            half = gm.graph.call_function(aten.sigmoid.default, (doubled,))
            again = gm.graph.call_function(aten.mul.Tensor, (half, 2))
            new = gm.graph.call_function(aten.sub.Tensor, (again, 1))
        for one in (doubled, half, again, new):
            one.meta.update({key: value for key, value in node.meta.items() if key == "custom"})
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 8)

    def forward(self, x):
        h = self.first(x)
        with region("activation"):
            h = (h * h).tanh()
        return self.last(h)


def compiled_and_eager(passes, partitioner="default", *, dynamic=False):
    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 8, requires_grad=True)
    compiled = pipeline.compile(model, (x,), passes=passes, partitioner=partitioner, dynamic=dynamic)
    return compiled, step(compiled, (x,)), step(model, (x,))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("partitioner", ["default", "min_cut"])
def test_a_joint_pass_that_adds_nodes(partitioner, dynamic):
    passes = [graph_pass(graphs="joint")(sigmoids_for_tanh)]
    compiled, got, expected = compiled_and_eager(passes, partitioner, dynamic=dynamic)
    assert compiled.report.of("sigmoids_for_tanh")[0].added["aten.sigmoid.default"] == 1
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("partitioner", ["default", "min_cut"])
def test_a_forward_pass_that_adds_nodes_to_a_region(partitioner):
    inductor = RegionalInductor()
    passes = [graph_pass(graphs="forward")(sigmoids_for_tanh), inductor]
    compiled, got, expected = compiled_and_eager(passes, partitioner)
    assert [(row.name, row.status) for row in compiled.report.on("forward")] == [
        ("sigmoids_for_tanh", "ran"),
        ("regional_inductor", "compiled"),
    ]
    torch.testing.assert_close(got, expected)


def run(function, *passes, gm=None, graph="forward"):
    gm = gm or traced(function, torch.randn(4, 8))
    PassPipeline(passes).run(gm, [], graph=graph)
    return {node.name: node.meta.get("val") for node in gm.graph.nodes}


def add(gm, target, *args, **kwargs):
    with gm.graph.inserting_before(gm.graph.output_node()):
        return gm.graph.call_function(target, args, kwargs)


def sine(x):
    return x.sin()


def test_values_are_those_of_tracing():
    def several(gm):
        sin = gm.graph.find_nodes(op="call_function", target=aten.sin.default)[0]
        size = add(gm, aten.sym_size.int, sin, 0)
        parts = add(gm, aten.split.Tensor, sin, split_size=2)
        add(gm, operator.getitem, parts, 1)
        add(gm, aten.full.default, [size, 3], 1.0)
        add(gm, operator.mul, size, 2)

    values = run(sine, several)
    assert values["sym_size_int"] == 4
    assert [tuple(one.shape) for one in values["split_tensor"]] == [(2, 8), (2, 8)]
    assert values["getitem"].shape == (2, 8)
    assert values["full_default"].shape == (4, 3)
    assert values["mul"] == 8
    modes = {values[name].fake_mode for name in ("sin", "getitem", "full_default")}
    assert len(modes) == 1


def test_symbols_stay_symbols():
    gm = make_fx(sine, tracing_mode="symbolic")(torch.randn(6, 8))
    values = run(sine, lambda gm: add(gm, aten.sum.dim_IntList, node_called(gm, "sin"), [1]) and None, gm=gm)
    (x,) = (value for name, value in values.items() if name.startswith("x"))
    assert str(values["sum_dim_int_list"].shape[0]) == str(x.shape[0])
    assert not str(x.shape[0]).isdigit()


def node_called(gm, name):
    return next(node for node in gm.graph.nodes if node.name == name)


def test_sizes_that_only_data_tell_are_bound():
    gm = make_fx(sine, tracing_mode="symbolic")(torch.randn(6, 8))
    run(sine, lambda gm: add(gm, aten.nonzero.default, node_called(gm, "sin")) and None, gm=gm)
    node = node_called(gm, "nonzero_default")
    assert [str(symbol) for symbol in node.meta["unbacked_bindings"]] == [str(node.meta["val"].shape[0])]


def test_bodies_and_constants_may_be_arguments():
    def branching(gm):
        gm.yes, gm.no = (traced(one, torch.randn(4, 8)) for one in (lambda x: (x.sin(),), lambda x: (x.cos(),)))
        gm.register_buffer("constant", torch.ones(3, 1, 1))
        sin = node_called(gm, "sin")
        with gm.graph.inserting_before(gm.graph.output_node()):
            yes, no, constant = map(gm.graph.get_attr, ("yes", "no", "constant"))
        condition = add(gm, aten.gt.Scalar, add(gm, aten.sum.default, sin), 0)
        chosen = add(gm, torch.ops.higher_order.cond, condition, yes, no, (sin,))
        add(gm, aten.add.Tensor, add(gm, operator.getitem, chosen, 0), constant)

    values = run(sine, branching)
    assert [tuple(one.shape) for one in values["cond"]] == [(4, 8)]
    assert values["add_tensor"].shape == (3, 4, 8)


def test_an_op_that_writes_changes_no_other_value():
    values = run(sine, lambda gm: add(gm, aten.t_.default, node_called(gm, "sin")) and None)
    assert (values["sin"].shape, values["t__default"].shape) == ((4, 8), (8, 4))


def test_an_op_that_fails_is_reported_with_pass_and_node():
    @graph_pass(name="mine")
    def failing(gm):
        add(gm, aten.mm.default, node_called(gm, "sin"), node_called(gm, "sin"))

    with pytest.raises(
        PassFailedError,
        match=r"^pass 'mine', on the inference graph, added a node that cannot run: node 'mm_default' calls aten.mm",
    ) as caught:
        run(sine, failing, graph="inference")
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "8" in str(caught.value.__cause__)


@pytest.mark.parametrize("kind", restart_exceptions())
def test_dynamos_restart_exceptions_propagate(kind):
    def op(value):
        raise kind

    with pytest.raises(kind):
        run(sine, lambda gm: add(gm, op, node_called(gm, "sin")) and None)


def test_nodes_without_a_value_are_unchanged():
    ran = []

    def op(value):
        ran.append(value)
        return value

    def twice(gm):
        add(gm, op, add(gm, op, node_called(gm, "sin")))

    assert run(sine, twice)["op_1"].shape == (4, 8)
    assert len(ran) == 2
    without = traced(sine, torch.randn(4, 8))
    del node_called(without, "sin").meta["val"]
    for gm in (without, torch.fx.symbolic_trace(sine)):
        values = run(sine, twice, gm=gm)
        assert values["sin"] is values["op"] is values["op_1"] is None
    assert len(ran) == 2


def test_values_that_are_there_stay():
    def known(gm):
        add(gm, aten.neg.default, node_called(gm, "sin")).meta["val"] = "mine"

    assert run(sine, known)["neg_default"] == "mine"


def test_assertions_are_not_run():
    def asserting(gm):
        add(gm, aten._assert_async.msg, add(gm, aten.sum.default, node_called(gm, "sin")), "negative")

    assert run(sine, asserting)["_assert_async_msg"] is None


def test_order_edges_get_values_too():
    def edges(graph):
        sin, cos = (one for one in graph.nodes if one.op == "call_function")
        return {cos: [sin]}

    gm = traced(lambda x: (x.sin(), x.cos()), torch.randn(4, 8))
    assert run(sine, AddControlDeps(edges, identity=1), gm=gm)["cos"].shape == (4, 8)
