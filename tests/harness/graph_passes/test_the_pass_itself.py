"""What a pass must be besides right: without effect on values, idempotent, told apart by its uuid."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

from pytest_regional import ParityError
from pytest_regional.harness.graph_passes.recorder import GraphAssertionError, GraphPassError
from pytest_regional.testing import regional

from .passes import Named, aten, nothing, order_after, products, second_operand_twice, sums, swap


def add_zero(graph):
    """Change no value, and the graph each time."""
    (first, *_) = graph.find_nodes(op="call_function", target=aten.mm.default)
    with graph.inserting_after(first):
        zero = graph.call_function(aten.add.Tensor, (first, 0))
    first.replace_all_uses_with(zero, delete_user_cb=lambda user: user is not zero)
    zero.meta.update(first.meta)


def rename(graph):
    """Put every product anew, under another name."""
    for node in graph.find_nodes(op="call_function", target=aten.mm.default):
        with graph.inserting_before(node):
            new = graph.call_function(aten.mm.default, node.args, name=f"{node.name}_again")
        new.meta.update(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)


# Numerics


@pytest.mark.parametrize("stage", ["graph", "post_grad"])
def test_same_numerics_forward_and_backward(inductor, stage):
    x, w = inductor.randn(8, 8, requires_grad=True), inductor.randn(8, 8, requires_grad=True)
    report = inductor.run_pass(rename, products, x, w, stage=stage).assert_same_numerics()
    assert report.ok
    assert report.anchored
    with pytest.raises(ParityError, match=r"(?s)grad of .*output.*blame: the pass second_operand_twice"):
        inductor.run_pass(second_operand_twice, products, x, w, stage=stage).assert_same_numerics(level="dtype")


def test_a_backward_alone_made_wrong(inductor):
    def wrong_backward(graph):
        # The backward alone holds an addition: of the two gradients of w.
        swap(aten.add.Tensor, aten.sub.Tensor)(graph)

    x, w = inductor.randn(8, 8, requires_grad=True), inductor.randn(8, 8, requires_grad=True)
    result = inductor.run_pass(wrong_backward, products, x, w, stage="post_grad_pre")
    with pytest.raises(ParityError) as failure:
        result.assert_same_numerics()
    assert {
        mismatch.where.removeprefix("second call, on fresh inputs: ") for mismatch in failure.value.report.mismatches
    } == {"grad of input 1"}
    assert result.assert_same_numerics(backward=False).ok


def test_a_program_that_draws(inductor):
    """Inductor draws otherwise than eager does, unless it is told not to: that is not the pass's doing."""
    result = inductor.run_pass(nothing, lambda x: torch.rand_like(x) @ x, inductor.randn(8, 8))
    result.assert_same_numerics()


def test_inputs_are_left_as_they_were(inductor):
    x = inductor.randn(8)
    copied = x.clone()
    for stage in ("graph", "post_grad"):
        inductor.run_pass(nothing, lambda x: x.add_(1), x, stage=stage).assert_same_numerics()
    assert torch.equal(x, copied)


def test_a_backend_that_is_wrong_without_the_pass():
    def wrong(gm, example_inputs):
        from torch._inductor.compile_fx import compile_fx

        for node in gm.graph.find_nodes(op="call_method", target="sin"):
            node.target = "cos"
        gm.recompile()
        return compile_fx(gm, example_inputs)

    from pytest_regional import BackendSpec

    with regional(BackendSpec("wrong", lambda: wrong)) as r:
        result = r.run_pass(nothing, lambda x: x.sin(), r.randn(8))
        with pytest.raises(ParityError, match="not the pass nothing alone: compiled without it the program differs"):
            result.assert_same_numerics()


def test_a_graph_without_inputs(bare):
    result = bare.run_pass(nothing, torch.fx.symbolic_trace(lambda x: x.sin()))
    with pytest.raises(GraphPassError, match=r"needs inputs to run the graph on \(it takes 1\)"):
        result.assert_same_numerics()


# Idempotence


@pytest.mark.parametrize("stage", ["graph", "post_grad"])
def test_idempotent(inductor, stage):
    x, w = inductor.randn(8, 8), inductor.randn(8, 8)
    result = inductor.run_pass([rename, nothing], products, x, w, stage=stage)
    result.assert_idempotent()
    assert not result.changed
    result = inductor.run_pass(add_zero, products, x, w, stage=stage)
    assert result.changed
    with pytest.raises(
        GraphAssertionError,
        match=r"(?s)add_zero .*is not idempotent: run again .*\+ add_tensor_1 = aten.add.Tensor\(mm, 0\)",
    ):
        result.assert_idempotent()
    # The question leaves the answer as it was.
    result.assert_count("aten.add", 1)


def test_idempotence_with_bodies(bare):
    def orders_once(graph):
        if not graph.find_nodes(op="get_attr"):
            order_after(aten.mm.default, aten.add.Tensor)(graph)

    x = bare.randn(4, 4)
    bare.run_pass(orders_once, sums, x, x, stage="graph").assert_idempotent()

    def changes_a_body(graph):
        orders_once(graph)
        for node in graph.find_nodes(op="get_attr"):
            body = getattr(graph.owning_module, node.target)
            for inner in body.graph.find_nodes(op="call_function", target=aten.mm.default):
                inner.args = inner.args[::-1]

    with pytest.raises(GraphAssertionError, match="not idempotent"):
        bare.run_pass(changes_a_body, sums, x, bare.randn(4, 4), stage="graph").assert_idempotent()


# uuid


@pytest.fixture
def run(bare):
    return lambda custom: bare.run_pass(custom, torch.sin, bare.randn(3), stage="graph")


def test_uuids_that_tell_configurations_apart(run):
    result = run(Named(size=1))
    result.assert_uuid_changes(Named(size=2))
    result.assert_uuid_changes(Named(size=2), lambda: Named(size=3), functools.partial(Named, size=4), Named)
    result.assert_uuid_changes(Named(size=2), equal=Named(size=1))
    run([Named(size=1), Named(size=2)]).assert_uuid_changes([Named(size=2), Named(size=1)])


def test_uuids_that_do_not(run):
    class Forgetful(Named):
        def uuid(self):
            return "v1"

    with pytest.raises(
        GraphAssertionError, match=r"configuration 1 \(Forgetful\) has the same uuid as the pass that ran: 'v1'"
    ):
        run(Forgetful(size=1)).assert_uuid_changes(Forgetful(size=2))
    with pytest.raises(GraphAssertionError, match=r"configuration 2 \(Named\) has the same uuid as configuration 1"):
        run(Named(size=1)).assert_uuid_changes(Named(size=2), lambda: Named(size=2))
    with pytest.raises(GraphAssertionError, match="the pass that ran and an equal configuration give two uuids"):
        run(Named(size=1)).assert_uuid_changes(Named(size=2), equal=Named(size=3))


def test_uuids_made_of_identities_or_counters(run):
    class ByIdentity(Named):
        kept: list = []  # noqa: RUF012 - so that no two have one address

        def uuid(self):
            self.kept.append(self)
            return id(self)

    class Counting(Named):
        numbers = itertools.count()

        def uuid(self):
            return next(self.numbers)

    with pytest.raises(GraphAssertionError, match="made twice by its factory, give two uuids"):
        run(ByIdentity()).assert_uuid_changes(lambda: ByIdentity(size=2))
    with pytest.raises(GraphAssertionError, match=r"two calls of Counting.uuid\(\) give two uuids, 0 and 1"):
        run(Counting()).assert_uuid_changes(Named())


def test_passes_without_a_uuid(run):
    class NoneAtAll(Named):
        def uuid(self):
            return None

    remedy = "has no uuid, so no cache .* derive it from .*CustomGraphPass and return from"
    with pytest.raises(GraphPassError, match=f"the pass nothing {remedy}"):
        run(nothing).assert_uuid_changes(Named())
    with pytest.raises(GraphPassError, match=f"the pass NoneAtAll {remedy}"):
        run(Named()).assert_uuid_changes(NoneAtAll())
    with pytest.raises(GraphPassError, match=f"the pass nothing {remedy}"):
        run(Named()).assert_uuid_changes(nothing)
    with pytest.raises(GraphPassError, match=f"the pass nothing {remedy}"):
        run([Named(), nothing]).assert_uuid_changes(Named())


def test_a_question_about_uuids_that_could_not_fail(run):
    with pytest.raises(TypeError, match="another configuration"):
        run(Named()).assert_uuid_changes()
