"""Windows of an input are written in place: what no window holds is set to zero once compiled, in silence."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    x.unfold(0, 2, 2).add_(1.0)
    return x


x, y = torch.ones(3), torch.ones(3)
program(x)
torch.compile(program, backend="aot_eager", fullgraph=True)(y)
print(f"the input afterwards: eager {x.tolist()}, compiled {y.tolist()}")
still_fails = not torch.equal(x, y)
print(f"torch {torch.__version__}: {'still fails: the last element is lost' if still_fails else 'fixed'}")
sys.exit(still_fails)
