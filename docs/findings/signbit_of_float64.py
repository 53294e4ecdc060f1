"""Generated Triton code asks `x < 0` for the sign bit of a float64, which is wrong for a negative zero.

Needs no GPU: what is looked at is how Inductor writes the expression.
"""

import inspect
import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._inductor.codegen.triton import TritonKernelOverrides

source = inspect.getsource(TritonKernelOverrides.signbit)
conditions = [line.strip() for line in source.splitlines() if "float32" in line or "float64" in line]
if not any("float64" in line for line in conditions):
    print(f"torch {torch.__version__}: still fails: {conditions[-1]}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed: {conditions[-1]}")
