"""A value and a view of all of it are two tensors; Inductor, without gradients, gives the caller one tensor twice."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    y = torch.sin(x)
    return y, y[...]


first, second = torch.compile(program)(torch.ones(2, 3))
second.unsqueeze_(0)
print(f"sizes after the second result was given a dimension: {tuple(first.shape)}, {tuple(second.shape)}")
still_fails = first is second
print(f"torch {torch.__version__}: {'still fails: two results are one tensor' if still_fails else 'fixed'}")
sys.exit(still_fails)
