"""A region whose tensors are empty and have a dynamic size besides: its code names a symbol that it does not define."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)


def program(x):
    with annotate({"compile_with_inductor": {"inductor_region": "r"}}):
        return x.sin()


x = torch.rand(0, 4)
torch._dynamo.mark_dynamic(x, 1)
try:
    torch.compile(program, backend=backend, fullgraph=True)(x)
    still_fails = False
except NameError as error:
    still_fails = True
    print(error)
print(f"torch {torch.__version__}: {'still fails: the region cannot be called' if still_fails else 'fixed'}")
sys.exit(still_fails)
