"""Two sums of a float64 matrix, along rows and along columns, in one "mix order" kernel: one is summed in float32.

Needs no GPU: what is looked at is the code that Inductor generates for a device that is only described, so it needs
pytest-regional beside torch.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._inductor import config

from pytest_regional.emulation import emulated

x = torch.randn(4096, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
wanted = {"triton.mix_order_reduction": True, "triton.mix_order_reduction_non_strict_mode": True}
with emulated("h200") as emulation, config.patch(wanted):
    columns, rows = torch.compile(lambda x: (x.sum(0), x.sum(1)), fullgraph=True)(x)
error = (columns - x.sum(0)).abs().max().item()
if "accum0 = tl.full([R0_BLOCK], 0, tl.float32)" in emulation.kernels[0].source:
    print(f"torch {torch.__version__}: still fails: a float64 sum is accumulated in float32: off by {error:.1e}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed (off by {error:.1e})")
