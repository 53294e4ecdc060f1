"""A view of an input with gaps that is written: compiled for any size, the program returns elements of the gaps."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    view = x.view_as(x)
    x.mul_(x)
    return view


compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
for size in (3, 4):
    expected, found = program(torch.arange(2.0 * size)[::2]), compiled(torch.arange(2.0 * size)[::2])
    if not torch.equal(expected, found):
        print(f"torch {torch.__version__}: still fails: {found.tolist()}, eager {expected.tolist()}")
        sys.exit(1)
print(f"torch {torch.__version__}: fixed: the view is that of the input")
