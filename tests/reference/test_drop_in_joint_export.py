"""Joint export with ours as compiler of the two graphs: what GPU smoke tests do, on a CPU and compared with eager."""

import contextlib
import copy

import pytest
import torch
from torch._functorch.aot_autograd import aot_compile_joint_with_descriptors, aot_export_joint_with_descriptors
from torch.fx.traceback import annotate, preserve_node_meta

from pytest_regional.reference import regional_inductor
from tests.reference.user_backends import counted_compiles

MARK = {"compile_with_inductor": {"inductor_region": "r"}}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(4, 4))
        self.register_buffer("calls", torch.zeros(4))


class MutatesBuffer(Model):
    def forward(self, x):
        with annotate(MARK):
            self.calls.add_(1)
            h = (x @ self.w) * self.calls
        return h.sin()


class ReturnsViews(Model):
    def forward(self, x):
        h = x.sin()
        with annotate(MARK):
            view = h.view(2, 8).t()
            product = h @ self.w
        return view.cos() + product.reshape(8, 2)


def compile_graph(gm, example_inputs):
    return regional_inductor(gm, *example_inputs)


def exported(model, x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(preserve_node_meta())
        joint = aot_export_joint_with_descriptors(stack, model, (x,))
        return aot_compile_joint_with_descriptors(joint, fw_compiler=compile_graph, bw_compiler=compile_graph)


def run(call, model, x):
    x = x.clone().requires_grad_()
    output = call(x)
    output.sum().backward()
    return output.detach(), x.grad, model.w.grad, model.calls


@pytest.mark.parametrize("cls", [MutatesBuffer, ReturnsViews])
def test_forward_and_backward(cls):
    model, x = cls(), torch.randn(4, 4)
    twin = copy.deepcopy(model)
    expected = run(twin, twin, x)
    with counted_compiles() as calls:
        compiled = exported(model, x.clone().requires_grad_())
        actual = run(lambda value: compiled(model.w, model.calls, value), model, x)
    torch.testing.assert_close(actual, expected)
    assert len(calls) == 2  # forward and backward
