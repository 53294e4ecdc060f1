"""The fake ``index`` by a transposed tensor of integers has other strides than the real one: so has the graph."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch

from torch._subclasses.fake_tensor import FakeTensorMode

x = torch.tensor([[0, 1], [1, 0]]).t()
with FakeTensorMode() as mode:
    fake = mode.from_tensor(x)
    said = fake[fake].stride()
found = x[x].stride()
if said != found:
    print(f"torch {torch.__version__}: still fails: fake strides {said}, real ones {found}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed: both have strides {found}")
