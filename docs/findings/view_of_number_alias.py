"""Two inputs without dimensions share memory, one is written and a view of the other returned: the call fails."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    y.add_(1.0)
    return x.unsqueeze(0)


x = torch.tensor(1.5)
program(x, x.detach())
try:
    torch.compile(program, backend="aot_eager", fullgraph=True)(x, x.detach())
    still_fails = False
except AssertionError as error:
    still_fails = "incorrect out shape" in str(error)
    print(str(error).partition("\n")[0])
print(f"torch {torch.__version__}: {'still fails: the compiled call fails' if still_fails else 'fixed'}")
sys.exit(still_fails)
