"""A nested compile region that is given a tensor and its ``detach`` does not compile: its inputs may share no memory.

Eager runs it, and so does a call of the same function without ``nested_compile_region``. Nothing is written to, and the
result is no view, so nothing depends on whose memory is whose. Dynamo compares the storages of what enters the
operator, says "Encountered aliasing during higher order op tracing", and does not go back to a plain call.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


@torch.compiler.nested_compile_region
def larger(x, y):
    return torch.maximum(x, y)


def program(x):
    return larger(x, x.detach())


try:
    torch.compile(program, backend="eager", fullgraph=True)(torch.ones(3))
except Exception as error:
    print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
