"""An ``out=`` argument of another layout than the inputs: the compiled program goes on with the inputs' strides.

Eager keeps the memory that it is given, and its strides. Functionalization puts the operator's new result in its place,
whose strides are those that the operator chooses; the values are copied back at the end, but what was computed in
between saw a tensor that eager never had. Where the next operation is a ``view`` the program does not even compile.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, out):
    torch.mul(x, 2.0, out=out)
    return torch.sin(out)


x, out = torch.ones(2, 2).t(), torch.zeros(2, 2)
eager = program(x, out.clone()).stride()
compiled = torch.compile(program, backend="aot_eager", fullgraph=True)(x, out.clone()).stride()
still_fails = compiled != eager
print(f"torch {torch.__version__}: {f'still fails: strides {compiled}, eager {eager}' if still_fails else 'fixed'}")
sys.exit(still_fails)
