"""Attention in float64 cannot be trained compiled on CPU: traced, its logsumexp is float32, and run, it is float64."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._subclasses import FakeTensorMode

operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
size = (1, 2, 16, 8)
real = operator(*[torch.ones(size, dtype=torch.float64)] * 3)[1].dtype
with FakeTensorMode():
    fake = operator(*[torch.ones(size, dtype=torch.float64)] * 3)[1].dtype
if fake != real:
    print(f"torch {torch.__version__}: still fails: the logsumexp is {real}, and {fake} while tracing")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
