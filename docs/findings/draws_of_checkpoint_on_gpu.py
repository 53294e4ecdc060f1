"""A dropout in a checkpoint, compiled for a GPU: with the same seed the next call draws another mask."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch.utils.checkpoint import checkpoint

if not torch.cuda.is_available():
    print(f"torch {torch.__version__}: not checked: it needs a GPU")
    sys.exit(2)


def program(x):
    return checkpoint(lambda value: torch.nn.functional.dropout(value, 0.5).sin(), x, use_reentrant=False)


def masks(function):
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(function(torch.ones(64, device="cuda", requires_grad=True)) != 0)
    return found


eager, compiled = masks(program), masks(torch.compile(program, backend="aot_eager", fullgraph=True))
assert torch.equal(*eager)
if not torch.equal(*compiled):
    print(
        f"torch {torch.__version__}: still fails: with one seed, {int((compiled[0] != compiled[1]).sum())} of 64 differ"
    )
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
