"""Inductor on CPU does not compile flex attention whose query is a matrix product of the same graph.

The lowering of the CPU template asks the query's buffer for four sizes, and the buffer of a product has two:
"not enough values to unpack (expected 4, got 2)". With the product outside the compiled graph it works.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch.nn.attention.flex_attention import flex_attention


def program(x, w):
    q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in (x @ w, x @ w.t(), x))
    return flex_attention(q, k, v)


x, w = torch.randn(1, 16, 32), torch.randn(32, 32) / 6
try:
    with torch.no_grad():
        actual = torch.compile(program)(x, w)
except Exception as error:
    print(f"torch {torch.__version__}: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
    sys.exit(1)
torch.testing.assert_close(actual, program(x, w))
print(f"torch {torch.__version__}: fixed, or not yet broken")
