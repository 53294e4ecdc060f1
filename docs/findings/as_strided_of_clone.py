"""``as_strided(x.clone())``, x a view behind the start of its storage: the clone is left out, x's offset subtracted."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return torch.as_strided(x.clone(), (4,), (1,), 2) * 2


x = torch.arange(10.0)[2:8]
eager, compiled = program(x), torch.compile(program, fullgraph=True)(x)
print("eager reads the clone from its third element:", eager.tolist())
print("compiled code reads x from its first:        ", compiled.tolist())
still_fails = not torch.equal(eager, compiled)
print(f"torch {torch.__version__}: {'still fails: other values than eager' if still_fails else 'fixed'}")
sys.exit(still_fails)
