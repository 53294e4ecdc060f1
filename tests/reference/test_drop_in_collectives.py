"""Collectives in regions, in a process group of one rank: graphs made by ``make_fx``, compiled by a bare call."""

import pytest
import torch
import torch.distributed as dist
from torch._guards import TracingContext, tracing
from torch.distributed import _functional_collectives as functional
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_regional import region
from pytest_regional._torch import torch_version
from pytest_regional.reference import regional_inductor
from tests.reference.graphs import annotate_node
from tests.reference.user_backends import compile_for_user, counted_compiles

needs_rewriting = pytest.mark.skipif(
    torch_version() < (2, 13), reason="torch 2.11's standalone_compile does not rewrite in-place collectives"
)


@pytest.fixture(params=["gloo", "fake"])
def _group(request, tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1) if request.param == "gloo" else FakeStore()
    dist.init_process_group(request.param, rank=0, world_size=1, store=store)
    yield
    dist.destroy_process_group()


def in_place(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def functional_form(x):
    y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    return y + 1


def traced(fn, mode, is_marked):
    gm = make_fx(fn, tracing_mode=mode)(torch.randn(4))
    for node in gm.graph.nodes:
        if node.op in ("call_function", "get_attr") and is_marked(node):
            annotate_node(node, {"inductor_region": "r"})
    return gm


MARKED = {
    "everything": lambda node: True,
    "the collective": lambda node: (
        not isinstance(node.target, torch._ops.OpOverload) or "aten" not in node.target.namespace
    ),
    "all but the collective": lambda node: "aten" in str(node.target),
}


@needs_rewriting
@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("mode", ["fake", "real"])
@pytest.mark.parametrize("marked", MARKED)
def test_in_place_all_reduce(marked, mode):
    x = torch.randn(4)
    gm = traced(in_place, mode, MARKED[marked])
    fake_mode = next(iter(gm.graph.nodes)).meta["val"].fake_mode
    with tracing(TracingContext(fake_mode)), counted_compiles() as calls:
        compiled = regional_inductor(gm)
    inputs = [x]
    torch.testing.assert_close(compiled(inputs), in_place(x))
    assert inputs == []
    collectives = [op for ops in calls for op in ops if "c10d" in op]
    assert bool(collectives) == (marked != "all but the collective")


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("marked", MARKED)
def test_functional_all_reduce(marked):
    x = torch.randn(4)
    compiled = regional_inductor(traced(functional_form, "fake", MARKED[marked]))
    torch.testing.assert_close(compiled([x]), functional_form(x))


@pytest.mark.usefixtures("_group")
def test_collectives_under_torch_compile():
    def fn(x):
        with region("r"):
            y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        return y + 1

    x = torch.randn(4)
    with counted_compiles() as calls:
        torch.testing.assert_close(compile_for_user(fn)(x), functional_form(x))
    assert any("_c10d_functional.all_reduce" in op for op in calls[0])
