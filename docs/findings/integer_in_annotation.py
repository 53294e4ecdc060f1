"""An integer argument in an annotation is a Dynamo internal error at its second value."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch.fx.traceback import annotate


def program(x, layer):
    with annotate({"compile_with_inductor": {"inductor_region": layer}}):
        return x.sin()


compiled = torch.compile(program, backend="eager", fullgraph=True)
compiled(torch.ones(3), 1)
try:
    compiled(torch.ones(3), 2)
except Exception as error:
    print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
