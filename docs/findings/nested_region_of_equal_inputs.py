"""A nested compile region that is called with one tensor twice, then with two: the second call computes with one.

Dynamo traces the body at the first call, finds that both parameters are one tensor, and makes a sub-graph with one
input. The second call is taken for a repetition of the first, because parameters are compared one by one and not which
of them are equal, and gets that sub-graph: its other argument is dropped. The values are wrong, in silence, on every
backend, ``eager`` included.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


@torch.compiler.nested_compile_region
def second(x, y):
    return torch.sin(y)


def program(x):
    return second(second(x, x), x)


x = torch.tensor(1.0)
compiled, eager = torch.compile(program, backend="eager", fullgraph=True)(x), program(x)
still_fails = not torch.allclose(compiled, eager)
print(
    f"torch {torch.__version__}: "
    f"{f'still fails: {compiled.item():.4f}, eager {eager.item():.4f}' if still_fails else 'fixed'}"
)
sys.exit(still_fails)
