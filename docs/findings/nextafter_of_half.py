"""Inductor returns the input of ``nextafter`` for float16 and bfloat16: it computes in float32 and rounds back."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return torch.nextafter(x, -x)


still = False
for dtype in (torch.float16, torch.bfloat16):
    x = torch.tensor([1.5, -0.3, 2.0], dtype=dtype)
    compiled, eager = torch.compile(program, fullgraph=True)(x), program(x)
    print(f"torch {torch.__version__}: {dtype}: compiled {compiled.tolist()}, eager {eager.tolist()}")
    still = still or not torch.equal(compiled, eager)
sys.exit(still)
