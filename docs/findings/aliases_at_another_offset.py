"""Two slices of one buffer, one of them written: called again with slices further on, the write goes somewhere else.

AOTAutograd makes one input of both, and takes the offsets of the first call for those of every call: no guard compares
them. The values are wrong in silence, on every backend behind it.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    y.zero_()
    return x + 1


def inputs(offset):
    buffer = torch.ones(12)
    return buffer[offset : offset + 6], buffer[offset + 2 : offset + 8]


compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
compiled(*inputs(0))
expected, found = inputs(4), inputs(4)
program(*expected)
compiled(*found)
print(f"first slice: eager {expected[0].tolist()}, compiled {found[0].tolist()}")
still_fails = not torch.equal(expected[0], found[0])
print(f"torch {torch.__version__}: {'still fails: the write went elsewhere' if still_fails else 'fixed'}")
sys.exit(still_fails)
