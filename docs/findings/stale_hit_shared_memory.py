"""Whole-graph Inductor's cache gives back what was compiled for inputs that share other memory, or none.

AOTAutograd compiles a program that writes to an input for the memory that its inputs share. The key of its cache has
neither storages nor offsets. The values are wrong in silence, also from one process to the next.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, y):
    x.mul_(2)
    return x + y


def inputs(overlapping):
    data = torch.arange(12.0).reshape(3, 4)
    return (data[0:2], data[1:3]) if overlapping else (data[0:2].clone(), data[1:3].clone())


def compiled(*tensors):
    torch._dynamo.reset()  # as a new process would
    return torch.compile(program, fullgraph=True)(*tensors)


compiled(*inputs(overlapping=False))
expected, found = program(*inputs(overlapping=True)), compiled(*inputs(overlapping=True))
print(f"overlapping inputs: eager {expected.tolist()}, compiled {found.tolist()}")
still_fails = not torch.equal(expected, found)
print(f"torch {torch.__version__}: {'still fails: the result for separate inputs' if still_fails else 'fixed'}")
sys.exit(still_fails)
