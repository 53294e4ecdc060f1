"""Identical partitions are compiled once: in forward and backward, and across the modules of a process."""

import gc

import pytest
import torch
import torch._inductor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from pytest_regional import region
from pytest_regional.reference import regional, regional_inductor


@pytest.fixture
def compiles(monkeypatch):
    """Names of the regions handed to ``standalone_compile``."""
    seen = []
    original = torch._inductor.standalone_compile

    def spy(gm, *args, **kwargs):
        seen.append(type(gm).__name__)
        return original(gm, *args, **kwargs)

    monkeypatch.setattr(torch._inductor, "standalone_compile", spy)
    return seen


def block(x, w):
    with region("block"):
        h = x @ w
    return h.sin()


def stack_of(count):
    def model(x, w):
        for _ in range(count):
            x = block(x, w)
        return x

    return model


def run(model, **options):
    """Compile ``model`` anew, call it forward and backward, and return what keeps it alive."""
    compiled = torch.compile(model, backend=regional, fullgraph=True, **options)
    x, w = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
    compiled(x, w).sum().backward()
    expected = model(x, w)
    torch.testing.assert_close(compiled(x, w), expected)
    return compiled


def test_resetting_dynamo_compiles_again(compiles):
    kept = run(stack_of(1))
    torch._dynamo.reset()
    run(stack_of(2))
    assert len(compiles) == 4
    del kept


def test_symbolic_shapes_are_shared_within_one_compile_only(compiles):
    """Guards belong to the shape environment of one compile, and would be missing in the other."""
    kept = run(stack_of(4), dynamic=True)
    forward_and_backward = len(compiles)
    run(stack_of(5), dynamic=True)
    assert (forward_and_backward, len(compiles)) == (2, 4)
    del kept


def test_what_no_graph_calls_any_more_is_given_back(compiles):
    def compiled_graph():
        with preserve_node_meta():
            return regional_inductor(make_fx(block, tracing_mode="fake")(torch.randn(4, 4), torch.randn(4, 4)))

    first, second = compiled_graph(), compiled_graph()
    assert len(compiles) == 1
    del first, second
    gc.collect()
    compiled_graph()
    assert len(compiles) == 2
