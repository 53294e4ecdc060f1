"""``isinf`` of integers, compared with its negation, does not compile: the lowering makes a constant of it."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    infinite = torch.isinf(x)
    return torch.eq(infinite, torch.logical_not(infinite))


x = torch.tensor([1, 2], dtype=torch.int32)
print(f"eager: {program(x).tolist()}")
try:
    torch.compile(program, fullgraph=True)(x)
    still_fails = False
except torch._inductor.exc.InductorError as error:
    still_fails = "Boolean argument" in str(error)
    print(next((line for line in str(error).splitlines() if "Boolean argument" in line), "")[:200])
print(f"torch {torch.__version__}: {'still fails: it does not compile' if still_fails else 'fixed'}")
sys.exit(still_fails)
