"""A piece that ``tensor_split`` makes of an input, strided and of a dynamic size, is a copy once compiled."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    first, _, _ = x.tensor_split(3, 0)
    x.zero_()
    return first


def strided():
    return torch.ones(3, 3)[:, 1:-1]


expected = program(strided())
found = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)(strided())
print(f"behind the write to the input eager's piece is {expected.tolist()}, the compiled one {found.tolist()}")
still_fails = not torch.equal(found, expected)
print(f"torch {torch.__version__}: {'still fails: the piece is a copy' if still_fails else 'fixed'}")
sys.exit(still_fails)
