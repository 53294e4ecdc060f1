"""``linalg.inv`` takes an effect token: a region with it cannot be called where a size is dynamic."""

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
        return torch.linalg.inv(x)


x = torch.eye(3).repeat(2, 1, 1)
torch._dynamo.mark_dynamic(x, 0)
program(x)
try:
    torch.compile(program, backend=backend, fullgraph=True)(x)
    still_fails = False
except AttributeError as error:
    still_fails = "_dynamo_propagated_dynamic_indices" in str(error)
    print(error)
print(f"torch {torch.__version__}: {'still fails: the region cannot be called' if still_fails else 'fixed'}")
sys.exit(still_fails)
