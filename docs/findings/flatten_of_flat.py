"""``flatten`` of what is flat returns the tensor itself; compiled, the program returns two tensors for it.

Both views are of an input, and AOTAutograd gives each back as a view of its own of that input. They share memory, so
values and writes agree; what differs is identity, and with it what belongs to a tensor and not to its memory: a
``resize_``, ``requires_grad_`` or an attribute set on the one result is not seen on the other. Where the result is not
a view of an input, it is one tensor compiled as well.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    flat = x.flatten()
    return flat, flat.flatten()


first, second = torch.compile(program, backend="aot_eager", fullgraph=True)(torch.ones(2, 2))
still_fails = first is not second
print(f"torch {torch.__version__}: {'still fails: two tensors' if still_fails else 'fixed'}")
sys.exit(still_fails)
