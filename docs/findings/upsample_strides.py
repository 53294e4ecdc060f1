"""``upsample_nearest1d`` of a transposed tensor has other strides once compiled.

The real operator returns contiguous memory, its fake implementation keeps the order of dimensions of its argument.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return torch.nn.functional.interpolate(x, scale_factor=2)


x = torch.ones(2, 3, 4).transpose(0, 1)
expected = program(x).stride()
found = torch.compile(program, backend="aot_eager", fullgraph=True)(x).stride()
print(f"strides in eager {expected}, compiled {found}")
print(f"torch {torch.__version__}: {'still fails: the strides differ' if found != expected else 'fixed'}")
sys.exit(found != expected)
