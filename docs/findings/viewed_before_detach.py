"""A tensor is viewed, then detached in place and written: a slice of the view does not compile."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    sine = x.sin()
    view = sine.flatten()
    sine.detach_()
    sine.neg_()
    first, _ = view.chunk(2)
    return first.detach() + x.flatten()[:2]


program(torch.ones(2, 2, requires_grad=True))
try:
    torch.compile(program, backend="aot_eager", fullgraph=True)(torch.ones(2, 2, requires_grad=True))
    still_fails = False
except torch._dynamo.exc.TorchRuntimeError as error:
    still_fails = "INTERNAL ASSERT FAILED" in str(error)
    print(str(error).partition("INTERNAL")[2][:160])
print(f"torch {torch.__version__}: {'still fails: it does not compile' if still_fails else 'fixed'}")
sys.exit(still_fails)
