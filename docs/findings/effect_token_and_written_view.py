"""``linalg.inv`` takes an effect token, which AOTAutograd does not expect where inputs of one memory are written."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y, z):
    y.bitwise_not_()
    inverse = torch.linalg.inv(x @ x.mT)
    z.isnan()
    return inverse


x, y = torch.ones(1, 1).requires_grad_(), torch.ones((), dtype=torch.bool)
program(x, y, y.view_as(y))
try:
    torch.compile(program, backend="aot_eager", fullgraph=True)(x, y, y.view_as(y))
except torch._dynamo.exc.BackendCompilerFailed as error:
    if "token" not in str(error):
        raise
    print(f"torch {torch.__version__}: still fails: {' '.join(str(error).split())[:120]}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed: the program compiles")
