"""A sine of y, then ``y.copy_(column * x)``: Inductor writes y first and takes the sine of what it wrote."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    sine = torch.sin(y)
    y.copy_(x[:, None] * x)
    return sine


x, y = torch.ones(3), torch.zeros(3, 3)
found = torch.compile(program, fullgraph=True)(x, y)
still_fails = bool(found.any())
print(f"torch {torch.__version__}: {'still fails: the sine of what was written' if still_fails else 'fixed'}")
sys.exit(still_fails)
