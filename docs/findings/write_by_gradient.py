"""An input is multiplied in place by one that wants a gradient: compiled, the backward fails; in eager it does not."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, w):
    x.mul_(w)
    return x


def gradient(function):
    w = torch.full((4,), 3.0, requires_grad=True)
    function(torch.ones(4), w).sum().backward()
    return w.grad


expected = gradient(program)
try:
    found = gradient(torch.compile(program, backend="aot_eager", fullgraph=True))
except RuntimeError as error:
    print(f"torch {torch.__version__}: still fails: {' '.join(str(error).split())[:160]}")
    sys.exit(1)
print(
    f"torch {torch.__version__}: {'fixed' if torch.equal(found, expected) else f'still fails: {found}, not {expected}'}"
)
sys.exit(not torch.equal(found, expected))
