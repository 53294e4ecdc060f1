"""Rows that a constant tensor names are filled in an input with gaps: an assertion on the graph fails."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return x.index_fill_(0, torch.tensor([1, 0]), 0.0)


program(torch.ones(4)[::2])
try:
    torch.compile(program, fullgraph=True)(torch.ones(4)[::2])
    still_fails = False
except (AssertionError, torch._dynamo.exc.BackendCompilerFailed) as error:
    still_fails = "copy_" in str(error)
    print(str(error).partition("raised:")[2].strip().partition("\n")[0][:200])
print(f"torch {torch.__version__}: {'still fails: it does not compile' if still_fails else 'fixed'}")
sys.exit(still_fails)
