"""A ``foreach`` operator writes in place to a view that a gradient flows through: the compiled gradient misses it."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    view = (x * 2).t()
    torch._foreach_mul_([view], 0.5)
    return view


def gradient(function):
    x = torch.ones(2, 2).requires_grad_()
    function(x).sum().backward()
    return x.grad


expected = gradient(program)
found = gradient(torch.compile(program, backend="aot_eager", fullgraph=True))
print(f"the gradient in eager is {expected.tolist()}, compiled {found.tolist()}")
still_fails = not torch.equal(found, expected)
print(f"torch {torch.__version__}: {'still fails: the gradient is wrong' if still_fails else 'fixed'}")
sys.exit(still_fails)
