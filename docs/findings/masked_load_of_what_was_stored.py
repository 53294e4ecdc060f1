"""A pool of one element on a GPU: the mask of a load is lost where the kernel stored the element before.

Windows reach over the end of the input, where a masked load gives a zero. Inductor takes the value that the kernel has
stored in place of the load, without the mask, and counts it four times. Needs no GPU: the kernel runs on the emulated
GPU of the package pytest-regional.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch

from pytest_regional.testing import regional


def program(x):
    y = x * 2
    return y, torch.nn.functional.avg_pool2d(y, 2, ceil_mode=True, count_include_pad=False)


with regional("inductor", "cuda-emulated", expects_regions=False) as harness:
    _, found = harness.compile(program)(torch.ones(1, 1, 1, 1).to(harness.device))
    found = found.item()
print(f"eager 2.0, compiled {found}")
still_fails = found != 2.0
print(f"torch {torch.__version__}: {'still fails: elements behind the end count' if still_fails else 'fixed'}")
sys.exit(still_fails)
