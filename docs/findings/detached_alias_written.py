"""Two inputs share memory, one of them as a strided view, and both are written: AOTAutograd asserts."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y, z):
    y.zero_()
    z.copy_(x)
    return x + 1


def run(function):
    y = torch.zeros(2, 8)[:, ::2]
    function(torch.ones(2, 4), y, y.detach())
    return y


expected = run(program)
try:
    found = run(torch.compile(program, backend="aot_eager", fullgraph=True))
except Exception as error:
    print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
    sys.exit(1)
print(f"torch {torch.__version__}: {'fixed' if torch.equal(found, expected) else 'still fails: wrong values'}")
sys.exit(not torch.equal(found, expected))
