"""Backward twice, and gradients of gradients: what AOTAutograd gives, as the documentation says."""

import pytest
import torch

from pytest_regional.reference import pipeline


def compiled(*, donated_buffer):
    """Return a function whose backward is given what nobody else keeps."""
    with torch._functorch.config.patch(donated_buffer=donated_buffer):
        return pipeline.compile(lambda x: x.exp().sin(), (torch.ones(4, requires_grad=True),))


def backward_twice(call):
    x = torch.ones(4, requires_grad=True)
    y = call(x).sum()
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    torch.testing.assert_close(x.grad, 2 * once)


@pytest.mark.parametrize("when_compiled", [True, False])
def test_buffers_are_donated_so_a_backward_runs_once(when_compiled):
    with pytest.raises(RuntimeError, match="donated"):
        backward_twice(compiled(donated_buffer=when_compiled))


def test_twice_where_nothing_is_donated_when_compiled_and_when_run():
    call = compiled(donated_buffer=False)
    with torch._functorch.config.patch(donated_buffer=False):
        backward_twice(call)


def test_there_are_no_gradients_of_gradients():
    call = compiled(donated_buffer=False)
    x = torch.ones(4, requires_grad=True)
    with torch._functorch.config.patch(donated_buffer=False):
        (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        # 2.11 does not refuse, but gives a gradient that requires none.
        with pytest.raises(RuntimeError, match=r"double backward|does not require grad"):
            gradient.sum().backward()
    with pytest.raises(RuntimeError, match="donated"):
        torch.autograd.grad(compiled(donated_buffer=True)(x).sum(), x, create_graph=True)
