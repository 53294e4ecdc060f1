"""A tensor made of Python numbers inside a region, or an index that is a list, does not compile."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)


def from_numbers(x):
    with annotate({"compile_with_inductor": {"inductor_region": "a"}}):
        return x @ x.new_tensor([1.0, 2.0])


def by_a_list(x):
    with annotate({"compile_with_inductor": {"inductor_region": "a"}}):
        return x[[1, 0]]


still_fails = False
for program in (from_numbers, by_a_list):
    torch._dynamo.reset()
    try:
        torch.compile(program, backend=backend, fullgraph=True)(torch.ones(2, 2))
    except Exception as error:
        still_fails = True
        print(f"  {program.__name__}: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
print(f"torch {torch.__version__}: {'still fails' if still_fails else 'fixed'}")
sys.exit(still_fails)
