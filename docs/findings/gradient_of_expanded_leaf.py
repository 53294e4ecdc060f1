"""With dynamic sizes, an output that flattens an expanded input is made again by ``as_strided``: a wrong gradient.

The backward of ``as_strided`` shares a gradient among the elements that are in one place in memory, that of ``flatten``
does not.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return x.flatten()


def gradient(function):
    x = torch.ones(1, 1).expand(2, 1).detach().requires_grad_()
    function(x).backward(torch.tensor([1.0, 0.0]))
    return x.grad.flatten().tolist()


eager, compiled = gradient(program), gradient(torch.compile(program, backend="aot_eager", dynamic=True, fullgraph=True))
print(f"gradient: eager {eager}, compiled {compiled}")
still_fails = eager != compiled
print(f"torch {torch.__version__}: {'still fails: a wrong gradient' if still_fails else 'fixed'}")
sys.exit(still_fails)
