"""parity (run): draws of random state (sin, rand_like).

Found by fuzzing, reduced. Needs the package pytest-regional, which observes what torch does.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()


def cannot_be_checked(kind, error, trace):
    """Exit with 2, neither 0 (fixed) nor 1 (still fails): the error says nothing about the defect."""
    sys.__excepthook__(kind, error, trace)
    print(f"cannot be checked here: {kind.__name__}", flush=True)
    os._exit(2)


if __name__ == "__main__":
    sys.excepthook = cannot_be_checked

import torch

# import torch
#
# def program(x0):
#     v1 = torch.sin(x0)
#     v2 = torch.rand_like(x0)
#     return v2, v1
#
# def inputs(device="cpu", seed=0):
#     g = torch.Generator().manual_seed(seed)
#
#     def signed(*shape):
#         return (torch.rand(shape, generator=g) * 1.75 + 0.25) * (torch.randint(0, 2, shape, generator=g) * 2 - 1)
#
#     x0 = signed().to(device, torch.float32).requires_grad_()
#     return (x0,)

from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.fuzz.findings.replaying import finding_beside
from pytest_regional.testing import regional

with regional('torch', 'cpu', expects_regions=False) as harness:
    try:
        finding_beside(__file__).check(harness)
    except OracleViolationError as violation:
        print(f"torch {torch.__version__}: still fails: {violation}")
        sys.exit(1)
print(f"torch {torch.__version__}: fixed")
