"""Bicubic interpolation with antialiasing that trains does not compile where a size is dynamic."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bicubic", antialias=True)


x = torch.rand(2, 3, 4, 4, requires_grad=True)
program(x).sum().backward()
torch._dynamo.mark_dynamic(x, 1)
try:
    torch.compile(program, backend="aot_eager", fullgraph=True)(x).sum().backward()
    still_fails = False
except (RuntimeError, torch._dynamo.exc.BackendCompilerFailed) as error:
    still_fails = "IntList" in str(error)
    print(str(error).partition("\nException raised")[0][:300])
print(f"torch {torch.__version__}: {'still fails: it does not compile' if still_fails else 'fixed'}")
sys.exit(still_fails)
