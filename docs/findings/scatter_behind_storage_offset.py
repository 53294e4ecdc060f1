"""``as_strided_scatter`` of a view behind the start of its storage: Inductor counts from the view's start."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    return torch.as_strided_scatter(x, y, (1,), (1,), 0)


x, y = torch.tensor([1.0, 2.0, 3.0])[1:-1], torch.tensor([9.0])
eager, compiled = program(x, y), torch.compile(program, fullgraph=True)(x, y)
print("eager writes in front of the view:", eager.tolist())
print("compiled code writes to the view: ", compiled.tolist())
still_fails = not torch.equal(eager, compiled)
print(f"torch {torch.__version__}: {'still fails: other values than eager' if still_fails else 'fixed'}")
sys.exit(still_fails)
