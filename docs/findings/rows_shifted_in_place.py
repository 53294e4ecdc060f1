"""``x[1:] = x[:-1].clone()``: Inductor leaves out the clone and copies forwards, so all rows become the first."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    x[1:] = x[:-1].clone()


eager, compiled = torch.arange(40.0), torch.arange(40.0)
program(eager)
torch.compile(program, fullgraph=True)(compiled)
print(f"{int((compiled != eager).sum())} of 40 rows differ")
still_fails = not torch.equal(compiled, eager)
print(f"torch {torch.__version__}: {'still fails: rows that were written are read' if still_fails else 'fixed'}")
sys.exit(still_fails)
