"""preserve_node_ordering accepts edges that contradict each other, and a node that waits for itself."""

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
    return x + 1, x @ x


def refused(edges):
    gm, nodes = traced(program, torch.randn(4, 4))
    try:
        preserve_node_ordering(gm.graph, {nodes[a]: OrderedSet([nodes[b]]) for a, b in edges})
    except Exception:
        return True
    return False


accepted = [edges for edges in ([("mm", "add"), ("add", "mm")], [("mm", "mm")]) if not refused(edges)]
print(f"torch {torch.__version__}: " + (f"still fails: accepted {accepted}" if accepted else "fixed"))
sys.exit(bool(accepted))
