"""Inductor computes the floor of a rounded quotient: ``1 // 0.1`` is 10, where eager and Python say 9."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def floor_quotient(x):
    return torch.div(x, 0.1, rounding_mode="floor")


x = torch.arange(8.0)
eager, compiled = floor_quotient(x), torch.compile(floor_quotient)(x)
print("x       ", x.tolist())
print("python  ", [value // 0.1 for value in x.tolist()])
print("eager   ", eager.tolist())
print("compiled", compiled.tolist())
still_fails = not torch.equal(eager, compiled)
print(f"torch {torch.__version__}: {'still fails: other values than eager' if still_fails else 'fixed'}")
sys.exit(still_fails)
