"""The fake ``uniform``, which AOTAutograd puts for ``uniform_``, keeps strides with gaps that the real one closes.

The real operator fills ``clone(x)``, and a clone of memory with gaps has none. The fake one returns the strides of
``x``. So a graph is traced with strides that no value has at run time, and whatever trusts them, a compiled region
behind the eager operator for one, is given something else. The fake twins of ``normal_functional``, ``exponential``,
``geometric``, ``random``, ``log_normal`` and ``cauchy`` say what the real ones do.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

x = torch.ones(4)[::2]
real = torch.ops.aten.uniform(x).stride()
with FakeTensorMode() as mode:
    fake = torch.ops.aten.uniform(mode.from_tensor(x)).stride()
print(f"torch {torch.__version__}: {'fixed' if real == fake else f'still fails: real {real}, fake {fake}'}")
sys.exit(real != fake)
