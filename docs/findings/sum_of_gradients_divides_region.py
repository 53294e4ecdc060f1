"""A value that is used twice in a region: the sum of its gradients is in no region, and divides the backward."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta

outside = []


def backward_compiler(gm, inputs):
    ops = [node for node in gm.graph.nodes if node.op == "call_function"]
    outside.extend(str(node) for node in ops if "compile_with_inductor" not in node.meta.get("custom", {}))
    return regional_inductor(gm, *inputs)


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=backward_compiler)(gm, inputs)


def program(x, w):
    with annotate({"compile_with_inductor": {"inductor_region": "r"}}):
        h = x @ w
        return h.sin() + h.cos()


x, w = torch.rand(4, 4, requires_grad=True), torch.rand(4, 4, requires_grad=True)
torch.compile(program, backend=backend, fullgraph=True)(x, w).sum().backward()
print(f"torch {torch.__version__}: the whole program is one region; of its backward these are outside: {outside}")
sys.exit(bool(outside))
