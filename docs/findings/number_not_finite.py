"""A program with a float64 input without dimensions is compiled again when a value comes that is not finite."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return torch.sin(x)


compiles = []


def backend(gm, inputs):
    compiles.append(gm)
    return gm.forward


compiled = torch.compile(program, backend=backend)
for number in (1.0, 2.0, float("nan"), float("nan"), float("inf"), -float("inf")):
    compiled(torch.tensor(number, dtype=torch.float64))
    print(f"after {number}: {len(compiles)} compiles")
still_fails = len(compiles) > 1
print(f"torch {torch.__version__}: {'still fails: compiled again for a value' if still_fails else 'fixed'}")
sys.exit(still_fails)
