"""Whole-graph Inductor's cache gives back what was compiled before a function of torch was replaced.

Dynamo leaves ``torch.nn.functional.batch_norm`` in the graph by its name. AOTAutograd calls it, and it calls
``torch.batch_norm``, which a package may have replaced. The key has only the name.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return torch.nn.functional.batch_norm(x, torch.zeros(3), torch.ones(3))


def replaced(n):
    torch.batch_norm = lambda x, *rest: x * n
    torch._dynamo.reset()  # as a new process would
    return float(torch.compile(program, fullgraph=True)(torch.ones(2, 3))[0, 0])


found = [replaced(n) for n in (2.0, 3.0)]
still_fails = found != [2, 3]
print(f"torch.batch_norm multiplies by 2, then by 3: the compiled program multiplies by {found}")
print(f"torch {torch.__version__}: {'still fails' if still_fails else 'fixed'}")
sys.exit(still_fails)
