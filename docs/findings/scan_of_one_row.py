"""A compiled ``associative_scan`` over one row returns its input, of which eager returns a copy."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    a = x.sin()
    b = torch._higher_order_ops.associative_scan(lambda left, right: left + right, a, 0, combine_mode="generic")
    torch._foreach_neg_([a, b])
    return b


x = torch.tensor([1.0])
expected, found = program(x), torch.compile(program, backend="aot_eager", fullgraph=True)(x)
if not torch.equal(expected, found):
    print(f"torch {torch.__version__}: still fails: {found.tolist()}, eager {expected.tolist()}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed: the result is no alias of the input")
