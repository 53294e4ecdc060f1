"""A dropout of a tensor without elements, in a region that trains: its mask is of floats, and booleans are expected."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
import torch._inductor.config
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)


def program(x):
    sine = x.sin()
    with annotate({"compile_with_inductor": {"inductor_region": "r"}}):
        return torch.nn.functional.dropout(sine, 0.5)


torch._inductor.config.fallback_random = True  # the random numbers of eager
try:
    torch.compile(program, backend=backend, fullgraph=True)(torch.rand(0, requires_grad=True))
    still_fails = False
except RuntimeError as error:
    still_fails = "expected dtype torch.bool" in str(error)
    print(str(error).partition("\n")[0])
print(f"torch {torch.__version__}: {'still fails: the region cannot be called' if still_fails else 'fixed'}")
sys.exit(still_fails)
