"""``torch.ones_like(x) * x``, and ``x + torch.zeros_like(x)``, is the input itself once Inductor compiled it."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch

compiled = torch.compile(lambda x: torch.ones_like(x) * x)
x = torch.tensor([2.0, 3.0])
compiled(x).zero_()
print(f"the input after the result was set to zero: {x.tolist()}")
still_fails = x.tolist() != [2.0, 3.0]
print(f"torch {torch.__version__}: {'still fails: the result is the input' if still_fails else 'fixed'}")
sys.exit(still_fails)
