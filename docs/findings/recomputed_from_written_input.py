"""The gradient of a product is wrong, in silence, where an input that went into it is written afterwards.

The partitioner has the backward compute ``x + y`` once more, from the input ``y`` as the forward left it.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    h = x + y
    z = x * h
    y.zero_()
    return z


def gradient(function):
    x = torch.tensor([2.0], requires_grad=True)
    function(x, torch.tensor([3.0])).backward()
    return x.grad.item()


eager, compiled = gradient(program), gradient(torch.compile(program, backend="aot_eager", fullgraph=True))
print(f"gradient of x * (x + y) at x = 2, y = 3: eager {eager}, compiled {compiled}")
still_fails = eager != compiled
print(f"torch {torch.__version__}: {'still fails: a wrong gradient' if still_fails else 'fixed'}")
sys.exit(still_fails)
