"""A second call of preserve_node_ordering that is given a node of before the first accepts it in silence."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
from torch.utils._ordered_set import OrderedSet

from torch.fx.experimental.proxy_tensor import make_fx


def traced(program, *inputs):
    gm = make_fx(program, tracing_mode="fake")(*inputs)
    return gm, {node.name: node for node in gm.graph.nodes}


def program(x):
    return x + 1, x @ x, x * 2


gm, nodes = traced(program, torch.randn(4, 4))
preserve_node_ordering(gm.graph, {nodes["mm"]: OrderedSet([nodes["add"]])})
preserve_node_ordering(gm.graph, {nodes["mul"]: OrderedSet([nodes["mm"]])})
mm = next(node for node in gm.graph.nodes if node.name == "mm")
mul = next(node for node in gm.graph.nodes if node.name == "mul")
still_fails = mm not in mul.args[0]
seen = "still fails: mul waits for a node that was erased"
print(f"torch {torch.__version__}: {seen if still_fails else 'fixed'}")
sys.exit(still_fails)
