"""A permutation that is indexed by itself: with Inductor, two are drawn, and one is indexed by the other."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.exc import BackendCompilerFailed


def program(x):
    p = torch.randperm(6)
    return p, p[p], x + 1


try:
    p, found, _ = torch.compile(program, fullgraph=True)(torch.ones(2))
except BackendCompilerFailed:
    print(f"torch {torch.__version__}: cannot be checked: the program does not compile (index_by_permutation.py)")
    sys.exit(2)
print(f"p is {p.tolist()}; p[p] is {p[p].tolist()}, compiled {found.tolist()}")
still_fails = not torch.equal(found, p[p])
print(f"torch {torch.__version__}: {'still fails: two permutations' if still_fails else 'fixed'}")
sys.exit(still_fails)
