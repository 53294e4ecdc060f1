"""What the second call of a ``nested_compile_region`` returned is written in place: the program does not compile."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


@torch.compiler.nested_compile_region
def block(x, y):
    return torch.atan(x)


def program(x):
    block(x, x)
    second = block(x, x)
    second.add_(x)
    return second


try:
    torch.compile(program, backend="aot_eager", fullgraph=True)(torch.ones(3, requires_grad=True))
except RuntimeError as error:
    print(f"{type(error).__name__}: {str(error).splitlines()[1].strip()[:160]}")
    print(f"torch {torch.__version__}: still fails: does not compile")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
