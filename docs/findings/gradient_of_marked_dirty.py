"""An autograd.Function writes its first input and marks it dirty; compiled, its second input gets no gradient."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


class AddInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        x.add_(y)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient


def program(x):
    y = torch.sin(x)
    AddInPlace.apply(y, x)
    return y


def gradient(function):
    x = torch.ones(2, requires_grad=True)
    function(x).sum().backward()
    return x.grad


expected = gradient(program)
found = gradient(torch.compile(program, backend="eager", fullgraph=True))
print(f"gradient of x: eager {expected.tolist()}, compiled {found.tolist()}")
still_fails = not torch.allclose(expected, found)
print(f"torch {torch.__version__}: {'still fails: a gradient is lost' if still_fails else 'fixed'}")
sys.exit(still_fails)
