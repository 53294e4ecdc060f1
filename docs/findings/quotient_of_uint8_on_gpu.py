"""``x // 16 % 16`` of a uint8 does not compile on a GPU: constants of the quotient are int32, and so is the quotient.

Needs no GPU: the kernel runs, or does not, on the emulated GPU of the package pytest-regional. Triton's compiler says
the same of it, for ``GPUTarget("cuda", 90, 32)``.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch

from pytest_regional.emulation import EmulationError
from pytest_regional.testing import regional


def program(x):
    return x // 16 % 16


with regional("inductor", "cuda-emulated", expects_regions=False) as harness:
    try:
        harness.compile(program)(torch.arange(200, dtype=torch.uint8).to(harness.device))
    except EmulationError as error:
        if "different signedness" not in str(error):
            raise
        print(f"torch {torch.__version__}: still fails: int32 % uint8 is an error in Triton")
        sys.exit(1)
print(f"torch {torch.__version__}: fixed")
