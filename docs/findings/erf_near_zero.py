"""Inductor's erf of float32 on CPU keeps no digit near zero: it is 5e-7 off, where eager errs by half a unit."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch

x = torch.linspace(1e-8, 1e-6, 64)
exact = torch.erf(x.double())
worst = {}
for name, function in (("eager", torch.erf), ("compiled", torch.compile(lambda x: torch.erf(x)))):
    worst[name] = ((function(x).double() - exact) / exact).abs().max().item()
    print(f"relative error of erf between 1e-8 and 1e-6, {name}: {worst[name]:.1e}")
still_fails = worst["compiled"] > 100 * worst["eager"]
print(f"torch {torch.__version__}: {'still fails: values near zero are wrong' if still_fails else 'fixed'}")
sys.exit(still_fails)
