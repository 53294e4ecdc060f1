"""The whole backend on small programs, compiled by Inductor."""

import pytest
import torch
import torch._inductor

from pytest_regional._region import region
from pytest_regional._torch.inductor import compiled_output_strides
from pytest_regional.reference import regional


@pytest.fixture
def compiled_ops(monkeypatch):
    """Op names of each ``standalone_compile`` call, in order."""
    seen = []
    original = torch._inductor.standalone_compile

    def spy(gm, *args, **kwargs):
        seen.append([str(node.target) for node in gm.graph.nodes if node.op == "call_function"])
        return original(gm, *args, **kwargs)

    monkeypatch.setattr(torch._inductor, "standalone_compile", spy)
    return seen


def gradients(fn, *inputs):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    output = fn(*leaves)
    output.square().sum().backward()
    return [output, *(leaf.grad for leaf in leaves)]


def test_forward_and_backward(compiled_ops):
    def block(x, w):
        h = x @ w
        with region("mlp"):
            h = torch.nn.functional.silu(h) * h
        return h @ w.T

    inputs = torch.randn(8, 16), torch.randn(16, 16)
    expected = gradients(block, *inputs)
    actual = gradients(torch.compile(block, backend=regional, fullgraph=True), *inputs)
    torch.testing.assert_close(actual, expected)
    assert [value.stride() for value in actual] == [value.stride() for value in expected]
    forward, backward = compiled_ops
    assert forward == ["aten.silu.default", "aten.mul.Tensor"]
    assert "aten.silu_backward.default" in backward


def test_values_leave_a_region_with_the_strides_of_the_trace(compiled_ops):
    """``stack`` of channels-last tensors: Inductor's decomposition would return contiguous memory."""

    def fn(x):
        with region("r"):
            return torch.stack([x, x], 1) * 2

    x = torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    actual = torch.compile(fn, backend=regional, fullgraph=True)(x)
    torch.testing.assert_close(actual, fn(x))
    assert actual.stride() == fn(x).stride()
    assert compiled_ops == [["aten.stack.default", "aten.mul.Tensor"]]


def test_installed_torch_tells_the_strides_of_a_compiled_region(monkeypatch):
    artifacts = []
    original = torch._inductor.standalone_compile
    monkeypatch.setattr(
        torch._inductor, "standalone_compile", lambda *a, **k: artifacts.append(original(*a, **k)) or artifacts[-1]
    )
    decorated = region("r")(lambda x: x.t() * 2)
    torch.compile(decorated, backend=regional)(torch.randn(2, 3))
    assert compiled_output_strides(artifacts[0], 1) == [("1", "3")]


@pytest.mark.parametrize("mark", [torch._dynamo.mark_dynamic, torch._dynamo.decorators.mark_unbacked])
def test_sizes_that_are_expressions(mark):
    def fn(x):
        y = torch.cat([x, x])
        with region("r"):
            return y + 1

    x = torch.randn(6)
    mark(x, 0)
    compiled = torch.compile(fn, backend=regional, fullgraph=True)
    torch.testing.assert_close(compiled(x), fn(x))
    with torch.compiler.set_stance("fail_on_recompile"):
        torch.testing.assert_close(compiled(torch.randn(8).zero_()), torch.ones(16))


def test_writes_views_constants_and_random_numbers(compiled_ops):
    def fn(x):
        y = x.clone()
        with region("r"):
            y.add_(1)
            view = y.t()
            mask = torch.rand_like(x)
        y.mul_(2)
        with region("r"):
            y[:, 0] = 1.0
            z = y * torch.tensor([1.0, 2.0, 3.0])
        return y, z, view, mask

    x = torch.randn(3, 3)
    with torch._inductor.config.patch(fallback_random=True):
        torch.manual_seed(1)
        expected = fn(x)
        torch.manual_seed(1)
        actual = torch.compile(fn, backend=regional, fullgraph=True)(x)
    torch.testing.assert_close(actual, expected)
    assert actual[2].data_ptr() == actual[0].data_ptr()
    assert len(compiled_ops) == 2
