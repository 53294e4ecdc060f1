"""With eager's random numbers asked for, the bernoulli of Inductor draws others: it compares uniform numbers."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return torch.bernoulli(x)


x = torch.full((3, 3), 0.5, dtype=torch.float64)
with torch._inductor.config.patch(fallback_random=True):
    torch.manual_seed(0)
    eager = program(x)
    torch.manual_seed(0)
    compiled = torch.compile(program)(x)
print(f"eager:    {eager.flatten().tolist()}\ncompiled: {compiled.flatten().tolist()}")
still_fails = not torch.equal(eager, compiled)
print(f"torch {torch.__version__}: {'still fails: other draws, with fallback_random' if still_fails else 'fixed'}")
sys.exit(still_fails)
