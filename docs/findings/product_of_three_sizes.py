"""A slice with gaps is written next to the tensor that it is a slice of: with dynamic sizes the write goes elsewhere.

AOTAutograd makes one input of both, and takes the slice of it again by its stride, a product of three sizes, which no
node of its graph computes. ``_build_proxy_for_sym_expr`` then makes one call of ``operator.mul`` with three arguments.
The code of a graph writes two of them: the slice has another stride. Where a graph is interpreted, and in Inductor, the
call fails: "mul expected 2 arguments, got 3". PyTorch 2.15 multiplies them two at a time.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    y.mul_(2)
    return x.sign()


expected, found = torch.ones(4, 5, 6), torch.ones(4, 5, 6)
program(expected, expected[..., ::2])
torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)(found, found[..., ::2])
wrong = int((found != expected).sum())
print(f"{wrong} of {found.numel()} elements are not those of eager")
print(f"torch {torch.__version__}: {'still fails: the write went elsewhere' if wrong else 'fixed'}")
sys.exit(wrong > 0)
