"""``y.index_add(0, index, y)``; Inductor does it in place on y, and rows are read that were written."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, index):
    y = x * 2
    return y.index_add(0, index, y)


x, index = torch.ones(40), torch.arange(40).flip(0)
expected = program(x, index)
found = torch.compile(program, fullgraph=True)(x, index)
print(f"2 + 2: eager {expected[0].item():.0f}, compiled {found[0].item():.0f}")
still_fails = not torch.equal(found, expected)
print(f"torch {torch.__version__}: {'still fails: rows are read that were written' if still_fails else 'fixed'}")
sys.exit(still_fails)
