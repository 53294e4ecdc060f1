"""What Inductor expects of a graph is checked or made: nothing written in the middle, functional collectives."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional_collectives

from pytest_regional._torch import torch_version
from pytest_regional.reference import full_inductor
from pytest_regional.reference.full_inductor import FullInductorError, check_functional, use_functional_collectives
from pytest_regional.testing import fake_process_group
from tests.reference.full_inductor.backend import node_named, ops, run, traced

rewrites = pytest.mark.skipif(torch_version() < (2, 13), reason="torch 2.11 rewrites no collectives: see the refusal")


@pytest.fixture
def _group():
    with fake_process_group(world_size=8):
        yield


def test_a_write_in_the_middle_is_refused():
    def fn(x):
        y = x.sin()
        y.add_(1)
        return y * 2

    with pytest.raises(FullInductorError, match=r"'add_' \(aten.add_.Tensor\) writes to 'sin'") as caught:
        full_inductor(traced(fn, torch.randn(4)))
    assert caught.value.node == "add_"


def test_an_input_may_be_written_at_the_end():
    def fn(x):
        y = x.sin()
        x.copy_(y)
        return y

    check_functional(traced(fn, torch.randn(4)))


def test_an_input_is_not_written_while_it_is_read():
    def fn(x):
        x.copy_(x.sin())
        return x * 2

    with pytest.raises(FullInductorError, match="read again later"):
        check_functional(traced(fn, torch.randn(4)))


def test_a_view_of_the_input_counts_as_the_input():
    def fn(x):
        view = x.t()
        x.copy_(x.sin())
        return view * 2

    with pytest.raises(FullInductorError, match="read again later"):
        check_functional(traced(fn, torch.randn(4, 4)))


def test_a_write_in_a_body_is_refused():
    gm = traced(lambda x: torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (x,)), torch.randn(4))
    body = gm.true_graph_0
    (sin,) = body.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    with body.graph.inserting_after(sin):
        body.graph.call_function(torch.ops.aten.add_.Tensor, (sin, 1))
    with pytest.raises(FullInductorError, match=r"in a body: node 'add_\w*' \(aten.add_.Tensor\)"):
        check_functional(gm)


def in_place(x):
    y = x @ x
    dist.all_reduce(y)
    dist.all_reduce(x)
    return y @ x


@rewrites
@pytest.mark.usefixtures("_group")
def test_all_reduce_in_place_becomes_functional():
    gm = traced(in_place, torch.randn(4, 4))
    use_functional_collectives(gm)
    assert ops(gm)["_c10d_functional.all_reduce.default"] == 2
    assert ops(gm)["_c10d_functional.wait_tensor.default"] == 2
    assert not [name for name in ops(gm) if name.startswith("c10d.")]
    last = [node for node in gm.graph.nodes if node.op == "call_function"][-1]
    assert last.target is torch.ops.aten.copy_.default  # the input, at the end
    assert last.args[0].op == "placeholder"
    assert [str(node.args[1]) for node in gm.graph.nodes if node.name == "mm_1"] == ["wait_tensor_default_1"]


@rewrites
@pytest.mark.usefixtures("_group")
def test_it_compiles_and_groups_are_known_by_name():
    gm = traced(in_place, torch.randn(4, 4))
    x = torch.randn(4, 4)
    expected = x.clone()
    result = in_place(expected)
    torch.testing.assert_close(run(full_inductor(gm), x), result)
    torch.testing.assert_close(x, expected)
    use_functional_collectives(gm)
    (first, *_) = gm.graph.find_nodes(op="call_function", target=torch.ops._c10d_functional.all_reduce.default)
    assert isinstance(first.args[2], str)
    assert not gm.graph.find_nodes(op="get_attr")


@rewrites
@pytest.mark.usefixtures("_group")
def test_a_view_of_what_a_collective_writes():
    def fn(x):
        y = x * 2
        view = y.t()
        dist.all_reduce(y)
        return view + 1

    with pytest.raises(FullInductorError, match=r"reads that through the view"):
        full_inductor(traced(fn, torch.randn(4, 4)))


@pytest.mark.usefixtures("_group")
def test_a_collective_that_cannot_be_rewritten_is_refused():
    def fn(x):
        y = x * 2
        dist.broadcast(y, 0)
        return y + 1

    with pytest.raises(FullInductorError, match=r"'broadcast_'.*_functional_collectives"):
        full_inductor(traced(fn, torch.randn(4)))


@pytest.mark.skipif(torch_version() >= (2, 13), reason="later versions rewrite it")
@pytest.mark.usefixtures("_group")
def test_all_reduce_in_place_is_refused_where_torch_rewrites_nothing():
    with pytest.raises(FullInductorError, match="allreduce_"):
        full_inductor(traced(in_place, torch.randn(4)))


@pytest.mark.usefixtures("_group")
def test_functional_collectives():
    def fn(x):
        gathered = functional_collectives.all_gather_tensor(x @ x, 0, dist.group.WORLD)
        return functional_collectives.reduce_scatter_tensor(gathered @ x, "sum", 0, dist.group.WORLD)

    x = torch.randn(4, 4)
    gm = traced(fn, x)
    assert node_named(gm, "all_gather_into_tensor")
    assert run(full_inductor(gm), x).shape == (4, 4)
