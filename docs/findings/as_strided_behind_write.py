"""An input with gaps is written, and ``as_strided`` then reads its gaps: the compiled call fails.

AOTAutograd puts a dense tensor for the input that was written, on every backend behind it.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    x.mul_(x)
    return x.as_strided((8,), (1,), 0) + 1


x = torch.ones(8)[::2]
program(x)
try:
    torch.compile(program, backend="aot_eager", fullgraph=True)(x)
    still_fails = False
except (RuntimeError, torch._dynamo.exc.BackendCompilerFailed) as error:
    still_fails = "out of bounds for storage" in str(error)
    print(str(error).partition("\n\n")[0][:300])
print(f"torch {torch.__version__}: {'still fails: the compiled call fails' if still_fails else 'fixed'}")
sys.exit(still_fails)
