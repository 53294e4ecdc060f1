"""Order without data flow: random numbers, writes, collectives, asserts, bodies of higher-order ops."""

import functools
import operator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_regional._torch import operators
from pytest_regional.reference import plan_partitions, regional_inductor
from pytest_regional.reference.effects import effect_classes, order_edges, written_arguments
from tests.reference.graphs import ATEN, annotate_node

#: It draws for its dropout, and is marked as an operator that draws whether it has one or not.
ATTENTION = ATEN._scaled_dot_product_flash_attention_for_cpu.default


def graph_of(*calls):
    """Build a graph from ``(op, arguments, marked)``; arguments are numbers of earlier values, 0 being ``x``."""
    graph = torch.fx.Graph()
    values = [graph.placeholder("x")]
    for op, arguments, marked in calls:
        node = graph.call_function(op, tuple(values[a] if type(a) is int else a for a in arguments))
        values.append(annotate_node(node, 0) if marked else node)
    graph.output(tuple(value for value in values if not value.users))
    return torch.fx.GraphModule({}, graph), values


def names(edges):
    return [(a.name, b.name) for a, b in edges]


def draw(marked):
    return ATEN.rand_like.default, (0,), marked


def test_random_numbers_keep_program_order():
    gm, (_, *draws) = graph_of(draw(True), draw(False), draw(True))
    assert order_edges(gm.graph) == [(draws[0], draws[1]), (draws[1], draws[2])]
    assert len(plan_partitions(gm.graph).partitions) == 2


def test_random_numbers_within_a_region_stay_together():
    gm, _ = graph_of(draw(True), (ATEN.sin.default, (0,), False), draw(True))
    assert len(plan_partitions(gm.graph).partitions) == 1


def test_write_follows_earlier_reads_and_precedes_later_ones():
    gm, (_, _base, before, write, after) = graph_of(
        (ATEN.clone.default, (0,), False),
        (ATEN.sin.default, (1,), True),
        (ATEN.add_.Tensor, (1, 1.0), False),
        (ATEN.cos.default, (1,), True),
    )
    edges = order_edges(gm.graph)
    assert (before, write) in edges
    assert (write, after) in edges
    assert [len(p.nodes) for p in plan_partitions(gm.graph).partitions] == [1, 1]


def test_reads_of_other_memory_are_free():
    gm, _ = graph_of(
        (ATEN.clone.default, (0,), False), (ATEN.sin.default, (0,), True), (ATEN.add_.Tensor, (1, 1.0), False)
    )
    assert order_edges(gm.graph) == []


def test_write_through_a_view_orders_reads_of_its_base():
    gm, (_, _, _, write, read) = graph_of(
        (ATEN.clone.default, (0,), False),
        (ATEN.t.default, (1,), False),
        (ATEN.add_.Tensor, (2, 1.0), False),
        (ATEN.cos.default, (1,), True),
    )
    assert (write, read) in order_edges(gm.graph)


def test_views_are_known_by_their_storage_where_the_trace_kept_values():
    gm, (_, base, view, write, read) = graph_of(
        (ATEN.clone.default, (0,), False),
        (ATEN.t.default, (1,), False),
        (ATEN.add_.Tensor, (2, 1.0), False),
        (ATEN.cos.default, (1,), True),
    )
    tensor = torch.ones(2, 2)
    base.meta["val"], view.meta["val"], write.meta["val"] = tensor, tensor.t(), tensor.t()
    assert (write, read) in order_edges(gm.graph)
    view.meta["val"] = torch.ones(2, 2)
    assert (write, read) not in order_edges(gm.graph)


@pytest.mark.parametrize(
    ("op", "arguments", "written"),
    [
        (ATEN.copy_.default, (0, 1), [0]),
        (ATEN.add.Tensor, (0, 1), []),
        (operator.setitem, (0, 1, 1), [0]),
        (operator.iadd, (0, 1), [0]),
        (torch.relu_, (0,), [0]),
        (torch.relu, (0,), []),
        (torch.ops.higher_order.triton_kernel_wrapper_mutation, (0, 1), [0, 1]),
    ],
)
def test_written_arguments(op, arguments, written):
    _gm, values = graph_of((ATEN.sin.default, (0,), False), (op, arguments, False))
    assert written_arguments(values[-1]) == [values[i] for i in written]


def test_what_pytorch_says_of_writes_beyond_schemas_is_known():
    """PyTorch lists operators that write running statistics when they train, too; not all of them."""
    untold = []
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        target = getattr(getattr(getattr(torch.ops, space), name, None), schema.overload_name or "default", None)
        arguments = {
            one.name: True if one.name in ("training", "use_input_stats") else object() for one in schema.arguments
        }
        if isinstance(target, torch._ops.OpOverload) and "running_mean" in arguments:
            told = torch._C._SchemaInfo(schema)
            for one in ("training", "use_input_stats"):
                if one in arguments:
                    told.add_argument_value(one, True)
            expected = {one for one in arguments if told.is_mutable(one)}
            written = operators.written_arguments(target, tuple(arguments.values()), {})
            assert expected <= {name for name, value in arguments.items() if value in written}, schema.name
            untold += [schema.name] if expected and not schema.is_mutable else []
    assert len(untold) >= 4


@pytest.mark.parametrize(
    ("op", "training", "written"),
    [
        ("native_batch_norm.default", True, True),
        ("native_batch_norm.default", False, False),
        ("_native_batch_norm_legit.default", True, True),
        ("batch_norm_update_stats.default", None, True),
        ("_native_batch_norm_legit_functional.default", True, False),
        ("native_batch_norm_backward.default", True, False),
    ],
)
def test_running_statistics_are_written(op, training, written):
    target = functools.reduce(getattr, op.split("."), ATEN)
    names = [one.name for one in target._schema.arguments]
    given = [training if name in ("training", "train") else name for name in names]
    assert operators.written_arguments(target, given, {}) == (["running_mean", "running_var"] if written else [])


def test_a_read_of_running_statistics_follows_batch_normalization():
    """A partition that needs neither runs first: it must not take the read with it."""

    def program(x, mean, var):
        return torch.native_batch_norm(x.sin(), None, None, mean, var, True, 0.1, 1e-5)[0], mean * 2.0

    gm = make_fx(program, tracing_mode="fake")(torch.ones(4, 3), torch.zeros(3), torch.ones(3))
    for node in gm.graph.nodes:
        if node.name in ("sin", "mul"):
            node.meta["custom"] = {"compile_with_inductor": {}}
    inputs = [torch.randn(4, 3), torch.zeros(3), torch.ones(3)]
    expected = program(*[one.clone() for one in inputs])
    torch.testing.assert_close(regional_inductor(gm, *inputs)(inputs), expected)


def test_out_argument_is_written():
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    assert written_arguments(graph.call_function(ATEN.sin.out, (x,), {"out": y})) == [y]
    assert written_arguments(graph.call_function(torch.sin, (x,), {"out": y})) == [y]
    assert written_arguments(graph.call_method("add_", (x, y))) == [x]


@pytest.mark.parametrize(
    ("op", "arguments", "effects"),
    [
        (ATEN.sin.default, (0,), set()),
        (ATEN.native_dropout.default, (0, 0.5, True), {"random"}),
        (ATTENTION, (0, 0, 0), set()),
        (ATTENTION, (0, 0, 0, 0.0), set()),
        (ATTENTION, (0, 0, 0, 0.5), {"random"}),
        (torch.ops._c10d_functional.all_reduce.default, (0, "sum", "0"), {"collective"}),
        (torch.ops._c10d_functional.wait_tensor.default, (0,), {"collective"}),
        (ATEN._assert_scalar.default, (0, "message"), set()),
        (ATEN._assert_async.default, (0,), set()),
        (torch.ops.profiler._record_function_enter_new.default, ("name",), {"other"}),
        (torch.ops.higher_order.run_and_save_rng_state, (ATEN.rand_like.default, 0), {"random"}),
    ],
)
def test_effect_classes(op, arguments, effects):
    _, values = graph_of((op, arguments, False))
    assert effect_classes(values[-1]) == effects


def test_effects_of_a_body_are_those_of_its_op():
    body, _ = graph_of(draw(False))
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    owner = torch.fx.GraphModule({"body": body}, torch.fx.Graph())
    owner.body = body
    attribute = graph.get_attr("body")
    node = graph.call_function(torch.ops.higher_order.invoke_subgraph, (attribute, "body", x))
    graph.output((node,))
    owner.graph = graph
    (call,) = owner.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    assert effect_classes(call) == {"random"}


def test_unknown_module_takes_part_in_every_chain():
    gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Dropout(), torch.nn.ReLU()))
    first, second = gm.graph.find_nodes(op="call_module")
    assert names(order_edges(gm.graph)) == [(first.name, second.name)] * 3
