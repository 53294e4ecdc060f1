"""One of two inputs that share memory is unbound while the other is written: the compiled program fails."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    first, _ = y.unbind(0)
    x.add_(x)
    return first


def run(function):
    x = torch.ones(2, 3)
    return function(x, x.detach())


expected = run(program)
try:
    found = run(torch.compile(program, backend="aot_eager", fullgraph=True))
except Exception as error:
    print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
    sys.exit(1)
print(f"torch {torch.__version__}: {'fixed' if torch.equal(found, expected) else 'still fails: wrong values'}")
sys.exit(not torch.equal(found, expected))
