"""Dead-code elimination: what is useless goes, what has an effect stays; next to PyTorch's own."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
import torch._guards
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_regional._torch.operators import control_deps
from pytest_regional.reference import add_control_deps
from pytest_regional.reference.passes import DeadCodeElimination, eliminate_dead_code
from pytest_regional.reference.pipeline import PassPipeline
from pytest_regional.reference.pipeline.call import count_ops
from pytest_regional.testing import fake_process_group, regional

aten = torch.ops.aten


def trace(function, *inputs):
    return make_fx(function, tracing_mode="fake")(*(inputs or (torch.randn(4, 4),)))


def ops(gm):
    return sorted(count_ops(gm).elements())


def test_an_unused_chain():
    gm = trace(lambda x: (x.sin().cos().tan(), x + 1)[1])
    assert eliminate_dead_code(gm.graph) == 3
    assert ops(gm) == ["aten.add.Tensor"]
    assert eliminate_dead_code(gm.graph) == 0


def test_inputs_stay_and_so_does_what_is_used():
    gm = trace(lambda x, unused: x.sin().cos(), torch.randn(4), torch.randn(4))
    assert eliminate_dead_code(gm.graph) == 0
    assert len(gm.graph.find_nodes(op="placeholder")) == 2


# Effects. Each of these returns nothing of what it does.


def draws(x):
    torch.rand_like(x)
    return torch.rand_like(x)


def drops_out(x):
    torch.nn.functional.dropout(x, 0.5)
    return torch.nn.functional.dropout(x, 0.5)


def writes(x):
    x.add_(1)
    return x.sin()


def writes_a_view(x):
    x[0].zero_()
    return x.sin()


def asserts(x):
    torch._assert_async((x > -100).all(), "small")
    return x.sin()


def draws_in_a_branch(x):
    torch.cond(x.sum() > 0, lambda x: x + torch.rand_like(x), lambda x: x + 1, (x,))
    return torch.rand_like(x)


@pytest.mark.parametrize(
    ("program", "kept"),
    [
        (draws, {"aten.rand_like.default": 2}),
        (drops_out, {"aten.bernoulli_.float": 2}),
        (writes, {"aten.add_.Tensor": 1}),
        (writes_a_view, {"aten.zero_.default": 1, "aten.select.int": 1}),
        (asserts, {"aten._assert_async.msg": 1, "aten.all.default": 1}),
        (draws_in_a_branch, {"cond": 1, "aten.rand_like.default": 2}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_effects_stay(program, kept):
    gm = trace(program)
    eliminate_dead_code(gm.graph)
    gm.recompile()
    assert dict(count_ops(gm)).items() >= kept.items()


@pytest.mark.parametrize("program", [draws, writes, writes_a_view, draws_in_a_branch])
def test_the_program_does_the_same(program):
    gm, x = trace(program), torch.randn(4, 4)
    before = outcome(gm, x)
    eliminate_dead_code(gm.graph)
    gm.recompile()
    for one, other in zip(outcome(gm, x), before, strict=True):
        assert torch.equal(one, other)


def outcome(gm, x):
    """Return result, input and the next draw afterwards."""
    torch.manual_seed(0)
    x = x.clone()
    return gm(x), x, torch.rand(3)


def test_pytorchs_own_drops_a_draw_where_anything_is_compiled():
    """Eager draws twice, so that the second draw is another number: the reason why this pass exists."""
    theirs, ours, x = trace(draws), trace(draws), torch.randn(4, 4)
    expected = outcome(ours, x)
    with torch._guards.tracing(torch._guards.TracingContext(None)):
        theirs.graph.eliminate_dead_code()
        eliminate_dead_code(ours.graph)
    theirs.recompile()
    ours.recompile()
    assert not torch.equal(outcome(theirs, x)[0], expected[0])  # When this fails, PyTorch has mended it.
    assert torch.equal(outcome(ours, x)[0], expected[0])


def test_pytorchs_own_drops_a_branch_that_draws():
    theirs, ours, x = trace(draws_in_a_branch), trace(draws_in_a_branch), torch.randn(4, 4).abs()
    expected = outcome(ours, x)
    theirs.graph.eliminate_dead_code()
    eliminate_dead_code(ours.graph)
    theirs.recompile()
    ours.recompile()
    assert not torch.equal(outcome(theirs, x)[0], expected[0])  # When this fails, PyTorch has mended it.
    assert torch.equal(outcome(ours, x)[0], expected[0])


def call(target, *args, inputs=1):
    """Build a graph that calls ``target`` and uses nothing of it."""
    graph = torch.fx.Graph()
    values = [graph.placeholder(f"x{number}") for number in range(inputs)]
    graph.call_function(target, tuple(args) or tuple(values))
    graph.output((values[0],))
    return torch.fx.GraphModule({}, graph)


def user_function(x):
    raise AssertionError("nobody knows what this does")


@pytest.mark.parametrize("target", [print, user_function, torch._check, torch._assert, aten._assert_scalar.default])
def test_calls_of_unknown_functions_stay(target):
    gm = call(target)
    assert eliminate_dead_code(gm.graph) == 0
    assert len(ops(gm)) == 1


@pytest.mark.parametrize("target", [torch.sym_max, max, aten.sym_size.int])
def test_arithmetic_goes(target):
    assert eliminate_dead_code(call(target, inputs=2).graph) == 1


@pytest.mark.parametrize("target", [aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default])
def test_constraints_on_sizes_stay(target):
    assert eliminate_dead_code(call(target, 3).graph) == 0


@torch.library.custom_op("regional_dce::note", mutates_args=())
def noting(x: torch.Tensor) -> None:
    """An operator without a result."""


@noting.register_fake
def _(x):
    return None


@torch.library.custom_op("regional_dce::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """A pure operator."""
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def test_an_operator_without_a_result_stays_and_a_pure_one_goes():
    gm = trace(lambda x: (torch.ops.regional_dce.note(x), torch.ops.regional_dce.twice(x), x.sin())[-1])
    assert eliminate_dead_code(gm.graph) == 1
    assert ops(gm) == ["aten.sin.default", "regional_dce.note.default"]


def test_an_effectful_operator_stays():
    gm = call(torch.ops.higher_order.print, "x")
    assert eliminate_dead_code(gm.graph) == 0


def test_collectives_stay_and_so_do_their_waits():
    with fake_process_group(world_size=2):
        from torch.distributed._functional_collectives import all_reduce

        def program(x):
            all_reduce(x.sin(), "sum", torch.distributed.group.WORLD)
            return x + 1

        gm = trace(program)
        before = ops(gm)
        assert any("wait_tensor" in name for name in before)
        assert eliminate_dead_code(gm.graph) == 0
        started = copy.deepcopy(gm)
        (wait,) = started.graph.find_nodes(op="call_function", target=torch.ops._c10d_functional.wait_tensor.default)
        started.graph.erase_node(wait)
        assert eliminate_dead_code(started.graph) == 0


def test_order_edges_stay():
    gm = trace(lambda x: (x.sin(), x.cos(), x.tan())[2])
    sin, cos, _ = gm.graph.find_nodes(op="call_function", target=aten.sin.default) + [
        node for node in gm.graph.nodes if node.target in (aten.cos.default, aten.tan.default)
    ]
    add_control_deps(gm.graph, {cos: [sin]})
    assert eliminate_dead_code(gm.graph) == 0
    assert len(gm.graph.find_nodes(op="call_function", target=control_deps())) == 1


# Bodies.


def test_bodies_are_cleared_and_unused_ones_are_gone():
    def program(x):
        torch.cond(x.sum() > 1, torch.tan, torch.exp, (x,))
        return torch.cond(x.sum() > 0, lambda x: (x.tan(), x.sin())[1], torch.cos, (x,))

    gm = trace(program)
    assert len([*gm.children()]) == 4
    removed = eliminate_dead_code(gm.graph)
    gm.recompile()
    assert removed == 1 + 2 + 2  # tan in the branch, the cond with its element, its condition of two ops
    assert len([*gm.children()]) == 2
    assert "aten.tan.default" not in ops(gm)
    x = torch.randn(4)
    torch.testing.assert_close(gm(x), x.sin() if x.sum() > 0 else x.cos())


def test_partitions_are_judged_by_what_is_in_them():
    root = torch.nn.Module()
    root.pure, root.drawing, root.other = trace(torch.sin), trace(draws), torch.nn.Linear(4, 4)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for name in ("pure", "drawing", "other"):
        graph.call_module(name, (x,))
    graph.output((x,))
    gm = torch.fx.GraphModule(root, graph)
    assert eliminate_dead_code(gm.graph) == 1
    assert [node.target for node in gm.graph.nodes if node.op == "call_module"] == ["drawing", "other"]


def test_the_work_is_linear():
    """Eight times the nodes are eight times the questions; quadratic work would be sixty-four. Counted, not timed."""

    def long(n):
        graph = torch.fx.Graph()
        value = x = graph.placeholder("x")
        for _ in range(n):
            value = graph.call_function(aten.sin.default, (value,))
        graph.output((x,))
        return torch.fx.GraphModule({}, graph)

    def calls_of(n):
        graph, calls = long(n).graph, 0

        def count(frame, event, argument):
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            eliminate_dead_code(graph)
        finally:
            sys.setprofile(None)
        assert len(graph.nodes) == 2
        return calls

    assert calls_of(4000) < 9 * calls_of(500)


# The pass.


def test_as_a_pass():
    assert DeadCodeElimination().uuid() == DeadCodeElimination().uuid()
    assert DeadCodeElimination().uuid() != DeadCodeElimination(graphs=("joint",)).uuid()
    gm = trace(lambda x: (x.sin(), x.cos())[1])
    pipeline = PassPipeline([DeadCodeElimination()])
    pipeline.run(gm, [])
    assert pipeline.report[0].removed == {"aten.sin.default": 1}
    assert pipeline.uuid() is not None


def test_with_run_pass():
    def program(x, w):
        torch.rand_like(x)
        (x @ w).sin()
        return torch.nn.functional.dropout(x @ w.T, 0.5)

    with regional("aot_eager", expects_regions=False) as r:
        result = r.run_pass(DeadCodeElimination(), program, r.randn(4, 4), r.randn(4, 4), stage="graph")
        result.assert_count("aten.mm", 1)
        result.assert_count("aten.rand_like", 1)
        result.assert_same_numerics(level="bitwise")
        result.assert_idempotent()
        result.assert_uuid_changes(DeadCodeElimination(graphs=("joint",)), equal=DeadCodeElimination())
