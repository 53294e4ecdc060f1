"""A pool with padding and a single window on a GPU: elements of the padding are loaded, before the tensor begins.

Places that Inductor knows as constants are loaded without a mask; what was loaded is then thrown away. On a GPU that is
an access to memory that may not be there. Needs no GPU: the kernel runs on the emulated GPU of the package
pytest-regional.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch

from pytest_regional.emulation import EmulationError
from pytest_regional.testing import regional


def program(x):
    return torch.nn.functional.avg_pool2d(x, 3, padding=1)


with regional("inductor", "cuda-emulated", expects_regions=False) as harness:
    try:
        harness.compile(program)(torch.ones(1, 1, 3, 3).to(harness.device))
    except EmulationError as error:
        if "out-of-bounds load" not in str(error):
            raise
        print(f"torch {torch.__version__}: still fails: a load from the element -4")
        sys.exit(1)
print(f"torch {torch.__version__}: fixed")
