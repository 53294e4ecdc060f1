"""A custom operator writes an input without dimensions; with Inductor, what was read before sees the write."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


@torch.library.custom_op("finding::double", mutates_args=("target",))
def double(target: torch.Tensor) -> None:
    target.mul_(2.0)


@double.register_fake
def _double(target):
    return None


def program(x):
    before = x.sin()
    double(x)
    return before


expected = program(torch.tensor(1.0)).item()
found = torch.compile(program, fullgraph=True)(torch.tensor(1.0)).item()
print(f"the sine of 1: eager {expected:.4f}, compiled {found:.4f}, which is the sine of 2")
still_fails = abs(found - expected) > 1e-3
print(f"torch {torch.__version__}: {'still fails: read after it was written' if still_fails else 'fixed'}")
sys.exit(still_fails)
