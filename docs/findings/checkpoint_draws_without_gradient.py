"""A draw in a checkpoint to which no gradient comes, though an input wants one: the program does not compile."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch.utils.checkpoint import checkpoint


def noisy(x):
    return x + torch.rand_like(x)


def program(x, y):
    return checkpoint(noisy, y, use_reentrant=False)


try:
    torch.compile(program, backend="aot_eager", fullgraph=True)(torch.ones(3, requires_grad=True), torch.ones(3))
except RuntimeError as error:
    print(f"{type(error).__name__}: {str(error).splitlines()[1][:110]}")
    print(f"torch {torch.__version__}: still fails: does not compile")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
