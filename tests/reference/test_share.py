"""Identical partitions are compiled once: in forward and backward, and across the modules of a process."""

import gc

import pytest
import torch
import torch._inductor
from torch._inductor import config as inductor_config
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from pytest_regional._region import region
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


@pytest.mark.parametrize("count", [1, 8, 32])
def test_equal_blocks_cost_one_compile_each_way(compiles, count):
    run(stack_of(count))
    assert len(compiles) == 2


def test_a_second_module_of_the_same_blocks_costs_none(compiles):
    first = run(stack_of(2))
    second = run(stack_of(3))
    assert len(compiles) == 2
    del first, second


def test_resetting_dynamo_compiles_again(compiles):
    kept = run(stack_of(1))
    torch._dynamo.reset()
    run(stack_of(2))
    assert len(compiles) == 4
    del kept


def test_other_settings_compile_again(compiles):
    kept = run(stack_of(1))
    with inductor_config.patch(max_autotune_gemm_search_space="EXHAUSTIVE"):
        run(stack_of(2))
    assert len(compiles) == 4
    del kept


def test_another_precision_compiles_again(compiles):
    kept = run(stack_of(1))
    torch.use_deterministic_algorithms(True)
    try:
        run(stack_of(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(compiles) == 4
    del kept


def test_symbolic_shapes_are_shared_within_one_compile_only(compiles):
    """Guards belong to the shape environment of one compile, and would be missing in the other."""
    kept = run(stack_of(4), dynamic=True)
    forward_and_backward = len(compiles)
    run(stack_of(5), dynamic=True)
    assert (forward_and_backward, len(compiles)) == (2, 4)
    del kept


def test_sharing_can_be_switched_off(compiles):
    model = torch.compile(
        stack_of(3), backend=lambda gm, inputs: regional(gm, inputs, share_identical=False), fullgraph=True
    )
    x, w = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
    model(x, w).sum().backward()
    assert len(compiles) == 6


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
