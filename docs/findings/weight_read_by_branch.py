"""A convolution's weight that a branch of ``torch.cond`` reads as well: Inductor hands the branch another layout."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, weight):
    y = torch.nn.functional.conv2d(x, weight, stride=2)
    return y, torch.cond(x.sum() > 0, torch.tanh, torch.sin, (weight,))


try:
    torch.compile(program)(torch.ones(1, 2, 4, 4), torch.ones(1, 2, 4, 4, requires_grad=True))
    still_fails = False
except AssertionError as error:
    print(f"AssertionError: {str(error).splitlines()[0]}")
    still_fails = True
print(f"torch {torch.__version__}: {'still fails: the call fails' if still_fails else 'fixed'}")
sys.exit(still_fails)
