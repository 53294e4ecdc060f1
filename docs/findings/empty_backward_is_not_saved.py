"""What has a backward without operators is compiled anew by every process: Inductor gives that graph no cache key."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.utils import counters


def program(x):
    return x + 1


for _ in range(2):
    torch._dynamo.reset()
    torch.compile(program)(torch.ones(3, requires_grad=True)).sum().backward()
counted = counters["aot_autograd"]
names = ("miss", "saved", "hit", "bypass")
print(", ".join(f"{counted[f'autograd_cache_{name}']} {name}" for name in names))
still_fails = counted["autograd_cache_hit"] == 0
print(f"torch {torch.__version__}: {'still fails: no hit, and nothing says why' if still_fails else 'fixed'}")
sys.exit(still_fails)
