"""``rand_like`` of an input written through its transpose: with ``fallback_random`` Inductor draws by columns."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
import torch._inductor.config


def program(x):
    x.mT.add_(1.0)
    return torch.rand_like(x)


torch._inductor.config.fallback_random = True  # the same random numbers as eager
torch.manual_seed(0)
eager = program(torch.zeros(2, 2))
torch.manual_seed(0)
compiled = torch.compile(program, fullgraph=True)(torch.zeros(2, 2))
print("eager   ", eager.tolist())
print("compiled", compiled.tolist())
still_fails = not torch.equal(eager, compiled)
print(f"torch {torch.__version__}: {'still fails: eager draws by rows' if still_fails else 'fixed'}")
sys.exit(still_fails)
