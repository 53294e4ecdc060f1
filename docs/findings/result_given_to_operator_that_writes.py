"""A custom operator reads a result and writes what it was computed from; with Inductor, it is computed again later."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


@torch.library.custom_op("finding::accumulate", mutates_args=("target",))
def accumulate(target: torch.Tensor, other: torch.Tensor) -> None:
    target.add_(other)


@accumulate.register_fake
def _accumulate(target, other):
    return None


def program(x):
    doubled = x * 2
    accumulate(x, doubled)
    return doubled + 1


expected = program(torch.ones(8))[0].item()
found = torch.compile(program, fullgraph=True)(torch.ones(8))[0].item()
print(f"1 * 2 + 1: eager {expected:.0f}, compiled {found:.0f}, which is computed from the 3 that was written")
still_fails = abs(found - expected) > 1e-3
print(f"torch {torch.__version__}: {'still fails: computed from what was written later' if still_fails else 'fixed'}")
sys.exit(still_fails)
