"""One `_foreach_copy_` writes two inputs from each other: Inductor computes the second from the first's new value."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(a, b):
    torch._foreach_copy_([a, b], [b * 2, a * 2])


a, b = torch.zeros(4), torch.ones(4)
torch.compile(program, fullgraph=True)(a, b)
if a.tolist() != [2.0] * 4 or b.tolist() != [0.0] * 4:
    print(f"torch {torch.__version__}: still fails: a and b are {a.tolist()} and {b.tolist()}, not twos and zeros")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
