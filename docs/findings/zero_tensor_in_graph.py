"""A zero tensor, made by forward AD, is multiplied by a number in a graph of AOTAutograd: the process dies (SIGSEGV).

The first run of a graph is under a dispatch mode, under which ``mul.Scalar`` and ``add.Scalar`` of a zero tensor
read memory that is not there; eager without compiling does the same under ``torch.utils._python_dispatch`` modes.
"""

import os
import subprocess
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    gradient = torch.func.grad(lambda x: torch.square(x).sum())
    return torch.tanh(torch.func.jvp(gradient, (x,), (torch.ones_like(x),))[1])


if len(sys.argv) > 1:
    torch.compile(program, backend="aot_eager", fullgraph=True)(torch.rand(2, 1).requires_grad_())
    os._exit(0)
program(torch.rand(2, 1).requires_grad_())
code = subprocess.run([sys.executable, __file__, "compiled"]).returncode
if code:
    print(f"torch {torch.__version__}: still fails: eager runs, the compiled program's process ends with {code}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed: the compiled program runs")
