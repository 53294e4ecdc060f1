"""``x[torch.randperm(n)]`` does not compile with Inductor on CPU."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return x[torch.randperm(3)]


try:
    torch.compile(program)(torch.ones(3))
    still_fails = False
except RuntimeError as error:
    print(f"{type(error).__name__}: {str(error).splitlines()[1][:120]}")
    still_fails = True
print(f"torch {torch.__version__}: {'still fails: does not compile' if still_fails else 'fixed'}")
sys.exit(still_fails)
