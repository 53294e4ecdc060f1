"""A custom operator writes to a slice of an input behind a storage offset, and reads another: other elements change."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


@torch.library.custom_op("findings::accumulate", mutates_args=("target",))
def accumulate(target: torch.Tensor, other: torch.Tensor) -> None:
    target.add_(other)


@accumulate.register_fake
def accumulate_fake(target, other):
    return None


def program(x):
    accumulate(x[:1], x[-1:])


expected, found = torch.arange(4.0)[1:], torch.arange(4.0)[1:]
program(expected)
torch.compile(program, backend="aot_eager", fullgraph=True)(found)
print(f"eager leaves {expected.tolist()} in the input, compiled {found.tolist()}")
still_fails = not torch.equal(found, expected)
print(f"torch {torch.__version__}: {'still fails: other elements are written' if still_fails else 'fixed'}")
sys.exit(still_fails)
