"""``masked_fill_`` of a transposed tensor: compiled, by any backend behind AOTAutograd, the result is contiguous."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, mask):
    y = torch.sin(x)
    y.masked_fill_(mask, 0.5)
    return y


x, mask = torch.arange(16.0).reshape(4, 4).t(), torch.tensor([True, False, True, False])
eager = program(x, mask)
compiled = torch.compile(program, backend="aot_eager")(x, mask)
print(f"strides: eager {eager.stride()}, compiled {compiled.stride()}")
still_fails = eager.stride() != compiled.stride()
print(f"torch {torch.__version__}: {'still fails: other strides' if still_fails else 'fixed'}")
sys.exit(still_fails)
