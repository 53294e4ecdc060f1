"""The backward of ``index_select`` with an index that is expanded from one number does not compile on CPU."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, index):
    return torch.index_select(x, 1, index)


x, index = torch.ones(2, 4, requires_grad=True), torch.tensor([1]).expand(4)
try:
    torch.compile(program)(x, index).sum().backward()
    still_fails = False
except torch._inductor.exc.InductorError as error:
    print(f"{type(error).__name__}: {error}")
    still_fails = True
print(f"torch {torch.__version__}: {'still fails: does not compile' if still_fails else 'fixed'}")
sys.exit(still_fails)
