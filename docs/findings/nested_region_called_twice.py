"""A nested region is called with its own result: Inductor's gradient is wrong, as what was saved is overwritten.

The region's graph returns its input, to be saved for the backward. Inductor does not see that this result and the input
are one buffer, and writes another result of the forward into it.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


@torch.compiler.nested_compile_region
def nested(x):
    return torch.sin(x)


def program(x):
    return nested(nested(x)), x * x


def gradient(function):
    x = torch.tensor([0.5, 2.0], requires_grad=True)
    sum(result.sum() for result in function(x)).backward()
    return x.grad


expected, found = gradient(program), gradient(torch.compile(program, fullgraph=True))
print(f"eager {expected.tolist()}, compiled {found.tolist()}")
still_fails = not torch.allclose(found, expected)
print(f"torch {torch.__version__}: {'still fails: wrong gradient' if still_fails else 'fixed'}")
sys.exit(still_fails)
