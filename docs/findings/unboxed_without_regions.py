"""A graph without annotated nodes is returned unboxed: AOTAutograd warns and frees its inputs late."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta


def in_region(name, **configs):
    value = {"inductor_region": name}
    return annotate({"compile_with_inductor": value | ({"inductor_configs": configs} if configs else {})})


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)


import warnings


def program(x, w):
    return (x @ w).sin()


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.randn(4, 8, requires_grad=True)
    torch.compile(program, backend=backend, fullgraph=True)(x, torch.randn(8, 8)).sum().backward()
complaints = [str(w.message) for w in caught if "boxed" in str(w.message)]
print(f"torch {torch.__version__}: {len(complaints)} warnings of unboxed arguments: {complaints[:1]}")
sys.exit(bool(complaints))
