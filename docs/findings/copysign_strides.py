"""The fake ``copysign`` of a dense and a channels-last tensor has strides that the real one has not."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

x, y = torch.ones(1, 2, 4, 4), torch.ones(1, 2, 4, 4).contiguous(memory_format=torch.channels_last)
real = torch.copysign(x, y).stride()
with FakeTensorMode() as mode:
    fake = torch.copysign(mode.from_tensor(x), mode.from_tensor(y)).stride()
print(f"torch {torch.__version__}: {'fixed' if real == fake else f'still fails: real {real}, fake {fake}'}")
sys.exit(real != fake)
