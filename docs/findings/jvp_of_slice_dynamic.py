"""``torch.func.jvp`` of a slice whose size is dynamic does not compile, on every backend behind Dynamo."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import logging

import torch

logging.disable(logging.CRITICAL)


def program(x):
    return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1]


x = torch.rand(3, 4)[1:]
torch._dynamo.mark_dynamic(x, 0)
program(x)
try:
    torch.compile(program, backend="aot_eager", fullgraph=True)(x)
    still_fails = False
except torch._dynamo.exc.TorchRuntimeError as error:
    still_fails = "storage_offset" in str(error)
    print(str(error).partition("\nException raised")[0])
print(f"torch {torch.__version__}: {'still fails: it does not compile' if still_fails else 'fixed'}")
sys.exit(still_fails)
