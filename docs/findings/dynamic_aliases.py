"""Two inputs share memory, one is written and one is reshaped: with dynamic sizes AOTAutograd does not compile it."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    y.mul_(2.0)
    return y, x.reshape((8,))


x = torch.ones(8)
try:
    torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)(x, x.detach())
except RuntimeError as error:
    print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {str(error).splitlines()[1]}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
