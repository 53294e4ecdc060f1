"""Two clones of a computed value: two tensors in eager, one and the same from Inductor (``slice_scatter`` as well)."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    y = x.sin()
    return y.clone(), y.clone()


first, second = torch.compile(program)(torch.zeros(2, 2))
second.add_(2)
print(f"the first result after 2 was added to the second: {first.tolist()}")
still_fails = first is second
print(f"torch {torch.__version__}: {'still fails: two results are one tensor' if still_fails else 'fixed'}")
sys.exit(still_fails)
