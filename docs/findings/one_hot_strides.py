"""``one_hot`` of a transposed tensor: compiled, by any backend behind AOTAutograd, the result has other strides."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return torch.nn.functional.one_hot(x, 4)


x = torch.tensor([[0, 1, 2], [3, 2, 1]]).t()
eager, compiled = program(x), torch.compile(program, backend="aot_eager", fullgraph=True)(x)
print(f"strides: eager {eager.stride()}, compiled {compiled.stride()}")
still_fails = eager.stride() != compiled.stride()
print(f"torch {torch.__version__}: {'still fails: other strides' if still_fails else 'fixed'}")
sys.exit(still_fails)
