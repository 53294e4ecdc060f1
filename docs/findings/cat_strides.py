"""``cat`` of a transposed tensor with itself: contiguous in eager, transposed when whole-graph Inductor compiled it."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return torch.cat([x, x])


x = torch.ones(1, 2, 3).transpose(-2, -1)
eager, compiled = program(x), torch.compile(program, fullgraph=True)(x)
print(f"strides: eager {eager.stride()}, compiled {compiled.stride()}")
still_fails = eager.stride() != compiled.stride()
print(f"torch {torch.__version__}: {'still fails: other strides' if still_fails else 'fixed'}")
sys.exit(still_fails)
