"""``index_add`` of int8 on a GPU does not compile: Triton has no atomic addition of integers of 8 or 16 bits.

The same holds for ``scatter_add`` and ``index_put(accumulate=True)``, and for uint8 and int16. Needs no GPU: the kernel
runs, or does not, on the emulated GPU of the package pytest-regional.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch

from pytest_regional.emulation import EmulationError
from pytest_regional.testing import regional


def program(x, index):
    return x.index_add(0, index, x)


with regional("inductor", "cuda-emulated", expects_regions=False) as harness:
    x, index = torch.ones(4, dtype=torch.int8), torch.tensor([3, 2, 1, 0])
    try:
        harness.compile(program)(x.to(harness.device), index.to(harness.device))
    except EmulationError as error:
        if "atomic_add does not support int8" not in str(error):
            raise
        print(f"torch {torch.__version__}: still fails: an atomic addition of int8 is an error in Triton")
        sys.exit(1)
print(f"torch {torch.__version__}: fixed")
