"""Ordering a node twice nests the operator: the node then waits for the first dependency inside the second's body."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._inductor.fx_passes.control_dependencies import control_deps, preserve_node_ordering
from torch.utils._ordered_set import OrderedSet

from torch.fx.experimental.proxy_tensor import make_fx


def traced(program, *inputs):
    gm = make_fx(program, tracing_mode="fake")(*inputs)
    return gm, {node.name: node for node in gm.graph.nodes}


def program(x):
    return x + 1, x @ x, x * 2


gm, nodes = traced(program, torch.randn(4, 4))
for name in ("add", "mm"):
    nodes = {node.name: node for node in gm.graph.nodes}
    preserve_node_ordering(gm.graph, {nodes["mul"]: OrderedSet([nodes[name]])})
(mul,) = (node for node in gm.graph.nodes if node.name == "mul")
body = getattr(gm, mul.args[1].target)
still_fails = any(node.target is control_deps for node in body.graph.nodes)
print(
    f"torch {torch.__version__}: "
    + ("still fails: the body of control_deps holds another control_deps" if still_fails else "fixed")
)
sys.exit(still_fails)
