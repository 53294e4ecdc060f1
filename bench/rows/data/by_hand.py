"""What ``through_fixtures.py`` checks, with what PyTorch has for it. Not collected unless named."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch._inductor
from programs import mlp, pointwise, twice
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache


@pytest.fixture(autouse=True)
def isolated():
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    with fresh_cache():
        yield
    torch._dynamo.reset()


def compiled(fn):
    return torch.compile(fn, backend="regional", fullgraph=True)


def assert_parity(fn, *inputs):
    results = []
    for function in (fn, compiled(fn)):
        mine = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]
        output = function(*mine)
        if output.requires_grad:
            output.backward(torch.ones_like(output))
        results.append([output, *(tensor.grad for tensor in mine if tensor.grad is not None)])
    torch.testing.assert_close(*results)


def test_pointwise():
    assert_parity(pointwise, torch.randn(7, 9))


def test_mlp():
    shapes = (8, 16), (16, 32), (32, 16)
    assert_parity(mlp, *(torch.randn(*shape, requires_grad=True) for shape in shapes))


@pytest.fixture
def region_compiles():
    real = torch._inductor.standalone_compile
    with mock.patch.object(torch._inductor, "standalone_compile", side_effect=real) as spy:
        yield spy


def test_equal_regions_are_compiled_once(region_compiles):
    compiled(twice)(torch.randn(6, 6))
    assert counters["stats"]["unique_graphs"] == 1
    assert region_compiles.call_count == 1


def test_a_second_process_would_compile_nothing(region_compiles):
    x = torch.randn(5, 5, requires_grad=True)
    compiled(pointwise)(x).sum().backward()
    assert region_compiles.call_count == 2
    torch._dynamo.reset()
    region_compiles.reset_mock()
    compiled(pointwise)(x).sum().backward()
    assert region_compiles.call_count == 0
