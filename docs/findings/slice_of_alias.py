"""A slice of one of two inputs that share memory, while the other is written: compiled, it is a slice of their memory.

An input that is written and one that shares memory with it become one for AOTAutograd, which then repeats on this
common base the views that an output is of an input. ``unbind_of_alias.py`` is the same where sizes do not fit.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    x.neg_()
    return y[:2]


def run(function):
    memory = torch.arange(12.0)
    return function(memory[2:8], memory[4:])


expected = run(program)
found = run(torch.compile(program, backend="aot_eager", fullgraph=True))
print(f"eager {expected.tolist()}, compiled {found.tolist()}")
still_fails = not torch.equal(found, expected)
print(
    f"torch {torch.__version__}: {'still fails: elements of the memory, not of the input' if still_fails else 'fixed'}"
)
sys.exit(still_fails)
