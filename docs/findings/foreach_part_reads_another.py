"""One kernel of a ``foreach`` on a GPU reads in one part what another part of the same launch computes.

``y = -x`` is also returned, so it is stored. Inductor fuses it into the part of ``_foreach_neg`` that needs its sine;
the other part loads ``y`` from memory, though no order holds between the two. On a GPU the result is that of a race, in
silence. Needs no GPU: the emulated GPU of the package pytest-regional runs the parts in order, and says that the
memory is read before it is written.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch

from pytest_regional.emulation import EmulationError
from pytest_regional.testing import regional


def program(x):
    y = -x
    return *torch._foreach_neg([y, y.sin()]), y


with regional("inductor", "cuda-emulated", expects_regions=False) as harness:
    try:
        harness.compile(program)(torch.ones(8).to(harness.device))
    except EmulationError as error:
        if "loads memory that nobody has written" not in str(error):
            raise
        print(f"torch {torch.__version__}: still fails: a part of a foreach kernel reads what another part writes")
        sys.exit(1)
print(f"torch {torch.__version__}: fixed")
