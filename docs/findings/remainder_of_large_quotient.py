"""Inductor's vectorized ``remainder`` on CPU is ``x - floor(x / y) * y``: for a large quotient no digit is right."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch

x = torch.tensor([10.0, 1e6, 1e8, 1e12] * 8)
eager, compiled = torch.remainder(x, 0.7), torch.compile(torch.remainder, fullgraph=True)(x, 0.7)
print("x       ", x[:4].tolist())
print("eager   ", eager[:4].tolist())
print("compiled", compiled[:4].tolist())
still_fails = not torch.allclose(eager, compiled, atol=0.01)
print(f"torch {torch.__version__}: {'still fails: no remainders of 0.7' if still_fails else 'fixed'}")
sys.exit(still_fails)
