"""Inductor's caches give back what was compiled with another decomposition of an operator.

The table of decompositions is a parameter of the compile, and no key has it: neither AOTAutograd's nor Inductor's.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._inductor import decomposition


def program(x):
    return torch.ops.aten.silu(x)


def compiled_with(n):
    torch._dynamo.reset()  # as a new process would
    decomposition.decompositions[torch.ops.aten.silu.default] = lambda x: x * n
    decomposition.fast_random_decomps.cache_clear()
    return torch.compile(program, fullgraph=True)(torch.ones(3))


found = [float(compiled_with(n)[0]) for n in (2, 3)]
still_fails = found != [2, 3]
print(f"decomposed into a product with 2, then with 3: the compiled program multiplies by {found}")
print(f"torch {torch.__version__}: {'still fails' if still_fails else 'fixed'}")
sys.exit(still_fails)
