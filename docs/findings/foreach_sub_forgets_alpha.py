"""``torch._foreach_sub`` with ``alpha``: whole-graph Inductor subtracts as if it were 1."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    return torch._foreach_sub([x], [y], alpha=2)


x, y = torch.full((4,), 5.0), torch.ones(4)
(difference,) = torch.compile(program, fullgraph=True)(x, y)
print("5 - 2 * 1 is", difference[0].item())
still_fails = difference.tolist() != [3.0] * 4
print(f"torch {torch.__version__}: {'still fails: alpha is lost' if still_fails else 'fixed'}")
sys.exit(still_fails)
