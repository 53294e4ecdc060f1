"""The sum of one element is a view of it once compiled: an operator that then writes to the tensor changes the sum."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


@torch.library.custom_op("findings::doubled_in_place", mutates_args=("x",))
def doubled_in_place(x: torch.Tensor) -> None:
    x.mul_(2.0)


def program(x):
    total = x.sum()
    doubled_in_place(x)
    return total


expected = program(torch.tensor([3.0]))
found = torch.compile(program, fullgraph=True)(torch.tensor([3.0]))
if not torch.equal(expected, found):
    print(f"torch {torch.__version__}: still fails: {found.item()}, eager {expected.item()}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed: the sum stays what it was")
