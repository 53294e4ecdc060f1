"""The gradient of an output whose elements overlap in memory is wrong once compiled, by any backend, in silence.

The gradient that arrives is copied into memory with the output's strides, where elements overwrite each other.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return torch.mul(x, 1.0).unfold(0, 2, 1)


def gradient(function):
    x = torch.ones(3, requires_grad=True)
    function(x).backward(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    return x.grad.tolist()


eager, compiled = gradient(program), gradient(torch.compile(program, backend="aot_eager", fullgraph=True))
print(f"gradient: eager {eager}, compiled {compiled}")
still_fails = eager != compiled
print(f"torch {torch.__version__}: {'still fails: a wrong gradient' if still_fails else 'fixed'}")
sys.exit(still_fails)
