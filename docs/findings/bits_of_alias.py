"""One of two inputs that share memory is viewed as another dtype while the other is written: the call fails.

As for views that are split (``split_of_alias.py``), AOTAutograd gives the output back by replaying views on a synthetic
base of both inputs (``gen_alias_from_base``). Behind a view as another dtype and back the replay ends with the shape of
the base, which has one dimension, and an assertion says so after the graph has run and the input has changed: incorrect
out shape after application of ViewMeta sequence. Without the write it compiles and runs.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    same = y.view(torch.int32).view(torch.float32)
    x.add_(1)
    return same


x = torch.tensor(1.0)
try:
    torch.compile(program, backend="aot_eager", fullgraph=True)(x, x.detach())
except Exception as error:
    print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {str(error).splitlines()[0]}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
