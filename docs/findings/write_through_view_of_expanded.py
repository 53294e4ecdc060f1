"""An element of an expanded input is written through a view: eager does it, compiled the call fails."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    y = x.diagonal(0, 0, 1)
    y.mul_(2.0)
    return y


try:
    torch.compile(program, backend="aot_eager", fullgraph=True)(torch.ones(1, 1).expand(2, 1))
except RuntimeError as error:
    print(f"{type(error).__name__}: {str(error).splitlines()[1][:110]}")
    print(f"torch {torch.__version__}: still fails: does not compile")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
