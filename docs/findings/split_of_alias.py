"""One of two inputs that share memory is split by ``tensor_split`` while the other is written: the call fails.

For inputs that share memory, of which one is written, AOTAutograd makes a synthetic base, and gives an output that is
a view back by replaying how it was made of that base (``gen_alias_from_base``). The replay meets the base in one
dimension, so the dimension that was split does not exist: IndexError, after the graph has run and the input has
changed. ``unbind_of_alias.py`` shows the same of another view.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    part, *_ = y.tensor_split(3, 1)
    x.mul_(x)
    return part


x = torch.ones(3, 3)
try:
    torch.compile(program, backend="aot_eager", fullgraph=True)(x, x.detach())
except IndexError as error:
    print(f"torch {torch.__version__}: still fails: {error}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
