"""Two calls of one operator with several results: compiled, both return the same tensors, which eager makes apart.

Where a gradient flows, the default partitioner merges common subexpressions before it splits the graph. The two calls
become one, and what the caller gets twice is one tensor: who writes to the one result changes the other. Equal
operators with a single result stay apart (``x.exp(), x.exp()`` does), and so does this program without gradients.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    first, _ = torch.max(x, dim=0)
    again, _ = torch.max(x, dim=0)
    return first, again


x = torch.ones(3, 2, requires_grad=True)
first, second = torch.compile(program, backend="aot_eager", fullgraph=True)(x)
still_fails = first.data_ptr() == second.data_ptr()
print(f"torch {torch.__version__}: {'still fails: both results are in one memory' if still_fails else 'fixed'}")
sys.exit(still_fails)
