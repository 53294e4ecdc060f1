"""caches (restart): a hit where the model says miss (fusion).

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

# compile: plain, region 'a', size 3, max_fusion_size 8
# compile: plain, region 'a', size 3

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
