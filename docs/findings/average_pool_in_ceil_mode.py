"""``avg_pool2d`` with ``ceil_mode``: Inductor divides gradients of windows at the end by more than it should.

The forward divides by the elements that the input, with its padding, has in the window, and so does eager's backward.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return torch.nn.functional.avg_pool2d(x, 2, ceil_mode=True)


def gradient(function):
    x = torch.ones(1, 1, 3, 3, requires_grad=True)
    function(x).sum().backward()
    return x.grad


expected, found = gradient(program), gradient(torch.compile(program, fullgraph=True))
print(f"eager\n{expected[0, 0]}\ncompiled\n{found[0, 0]}")
still_fails = not torch.equal(found, expected)
print(f"torch {torch.__version__}: {'still fails: wrong gradient' if still_fails else 'fixed'}")
sys.exit(still_fails)
