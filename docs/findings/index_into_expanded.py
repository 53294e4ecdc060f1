"""Inductor lets ``index_copy`` and ``index_add`` write into the one row of an expanded value."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, index):
    rows = x.sin().expand(3, 4)
    return torch.index_copy(rows, 0, index, -rows[index])


x, index = torch.rand(4), torch.tensor([1, 0])
worst = (torch.compile(program, fullgraph=True)(x, index) - program(x, index)).abs().max().item()
print(f"torch {torch.__version__}: largest difference from eager {worst:.3g}")
sys.exit(worst > 1e-3)
