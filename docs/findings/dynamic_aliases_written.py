"""An input is added in place to another one that shares its memory: with dynamic sizes it does not compile."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    y.add_(x)
    return x


x = torch.ones(2)
try:
    torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)(x, x.detach())
except RuntimeError as error:
    print(f"{type(error).__name__}: {str(error).splitlines()[1][:110]}")
    print(f"torch {torch.__version__}: still fails: does not compile")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
