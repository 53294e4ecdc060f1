"""The whole backend on small programs, compiled by Inductor."""

import pytest
import torch
import torch._inductor

from pytest_regional import region
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


def test_installed_torch_tells_the_strides_of_a_compiled_region(monkeypatch):
    artifacts = []
    original = torch._inductor.standalone_compile
    monkeypatch.setattr(
        torch._inductor, "standalone_compile", lambda *a, **k: artifacts.append(original(*a, **k)) or artifacts[-1]
    )
    decorated = region("r")(lambda x: x.t() * 2)
    torch.compile(decorated, backend=regional)(torch.randn(2, 3))
    assert compiled_output_strides(artifacts[0], 1) == [("1", "3")]
