"""A function that swaps two inputs in place leaves both with the value of one: Inductor drops the copy of the other."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def swap(a, b):
    old = a.clone()
    a.copy_(b)
    b.copy_(old)


a, b = torch.zeros(4), torch.ones(4)
torch.compile(swap, fullgraph=True)(a, b)
if a.tolist() != [1.0] * 4 or b.tolist() != [0.0] * 4:
    print(f"torch {torch.__version__}: still fails: zeros and ones swapped are {a.tolist()} and {b.tolist()}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
