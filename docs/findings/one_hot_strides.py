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
stands = eager.stride() != compiled.stride()
print(f"torch {torch.__version__}: {'stands: other strides' if stands else 'mended'}")
sys.exit(stands)
